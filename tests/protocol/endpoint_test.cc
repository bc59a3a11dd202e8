#include "protocol/rdma/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "protocol/rdma/port_wish.h"
#include "protocol/rdma/registered_memory.h"
#include "tests/protocol/fake_verbs.h"

namespace reprise::rdma {
namespace {

using testing::HasSubstr;

// One side: a device, a completion queue and an endpoint.
struct Side {
  explicit Side(test::FakeFabric* fabric, const Endpoint::Options& options = {})
      : device(*fabric->Open((*fabric->Ports())[0])),
        queue(*device->MakeCompletionQueue(Endpoint::CompletionsMax(options))),
        endpoint(*Endpoint::Create(device.get(), queue.get(), options)) {}

  size_t Poll() {
    std::array<Completed, 8> completed;
    const size_t count = *queue->Poll(completed);
    for (size_t i = 0; i < count; ++i) endpoint->OnCompleted(completed[i]);
    return count;
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<Endpoint> endpoint;
};

void Connect(Side* a, Side* b) {
  ASSERT_TRUE(a->endpoint->Connect(b->endpoint->address()).ok());
  ASSERT_TRUE(b->endpoint->Connect(a->endpoint->address()).ok());
}

std::string RandomText(Prng* prng, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(prng->Next());
  return text;
}

// Both sides send, read, post and poll in any order; small queues, so that all of them fill.
TEST(EndpointTest, BytesArriveInOrderWhateverTheTiming) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    test::FakeFabric fabric(seed);
    Prng prng(seed + 1000);
    const Endpoint::Options options{.receives = static_cast<uint32_t>(2 + prng.Below(6)),
                                    .sends = static_cast<uint32_t>(1 + prng.Below(5)),
                                    .queue_depth = static_cast<uint32_t>(3 + prng.Below(6)),
                                    .message_bytes = 64u << prng.Below(3),
                                    .inline_bytes = static_cast<uint32_t>(prng.Below(100))};
    Side sides[2] = {Side(&fabric, options), Side(&fabric, options)};
    Connect(&sides[0], &sides[1]);
    std::string sent[2], received[2];
    const std::string all[2] = {RandomText(&prng, prng.Below(5000)),
                                RandomText(&prng, prng.Below(5000))};
    for (int step = 0; step < 200'000; ++step) {
      const size_t me = prng.Below(2), other = 1 - me;
      Endpoint& endpoint = *sides[me].endpoint;
      switch (prng.Below(5)) {
        case 0: {
          const std::string_view rest = std::string_view(all[me]).substr(sent[me].size());
          const auto part = rest.substr(0, prng.Below(300));
          sent[me] += part.substr(0, endpoint.Send(AsBytes(std::string(part))));
          break;
        }
        case 1: {
          std::string out(1 + prng.Below(200), '\0');
          out.resize(endpoint.Receive({reinterpret_cast<std::byte*>(out.data()), out.size()}));
          received[other] += out;
          break;
        }
        case 2:
          endpoint.Flush();
          break;
        case 3:
          sides[me].Poll();
          break;
        default:
          fabric.Step();
      }
      ASSERT_FALSE(endpoint.broken()) << endpoint.why() << " seed " << seed;
      if (received[0].size() == all[0].size() && received[1].size() == all[1].size()) break;
    }
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(received[i] == all[i]) << "seed " << seed;
    EXPECT_EQ(fabric.messages_without_receive(), 0u) << "seed " << seed;
  }
}

TEST(EndpointTest, WritesLandBeforeWhatFollowsThem) {
  test::FakeFabric fabric;
  Side writer(&fabric), reader(&fabric);
  Connect(&writer, &reader);
  std::vector<std::byte> from(4096, std::byte{7}), to(8192);
  const auto source = *writer.device->Register(from, Access::kReadHere);
  const auto landing = *reader.device->Register(to, Access::kPeerWrites);
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(writer.endpoint->Write({.data = from,
                                        .address = reinterpret_cast<uint64_t>(to.data()) + i * 4096,
                                        .key = landing->remote_key(),
                                        .told = i == 1,
                                        .tag = 99},
                                       source->local_key()));
  }
  EXPECT_EQ(writer.endpoint->Send(AsBytes("done")), 4u);
  const uint64_t work = writer.endpoint->Flush();
  EXPECT_FALSE(writer.endpoint->finished(work));
  while (reader.endpoint->readable() == 0) {
    ASSERT_TRUE(fabric.Step());
    reader.Poll();
    uint32_t tag = 0;
    if (reader.endpoint->TakeTag(&tag)) {
      EXPECT_EQ(tag, 99u);
      EXPECT_EQ(to[8191], std::byte{7});
      EXPECT_EQ(reader.endpoint->readable(), 0u);
    }
  }
  writer.Poll();
  EXPECT_TRUE(writer.endpoint->finished(work));
}

// Windows open before what is sent behind them, end when they are closed, and serve one peer alone.
TEST(EndpointTest, AWindowShowsItsPartToItsPeerWhileItIsOpen) {
  test::FakeFabric fabric;
  Side reader(&fabric), writer(&fabric), other(&fabric), third(&fabric);
  Connect(&reader, &writer);
  Connect(&other, &third);
  std::vector<std::byte> from(64, std::byte{7}), to(256);
  const auto source = *writer.device->Register(from, Access::kReadHere);
  const auto others = *third.device->Register(from, Access::kReadHere);
  const auto landing = *reader.device->Register(to, Access::kWindows);
  const auto window = *reader.device->MakeWindow();
  const auto write = [&](Side* side, const Memory& memory, uint64_t offset, uint32_t key) {
    EXPECT_TRUE(side->endpoint->Write(
        {.data = from, .address = reinterpret_cast<uint64_t>(to.data()) + offset, .key = key},
        memory.local_key()));
    side->endpoint->Flush();
    fabric.Run();
    while (side->Poll() > 0) {
    }
    return side->endpoint->error();
  };
  uint32_t before = 0;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(reader.endpoint->OpenWindow(window.get(), *landing, Bytes(to).subspan(64, 64)));
    EXPECT_NE(window->key(), before);
    before = window->key();
    EXPECT_EQ(reader.endpoint->Send(AsBytes("go")), 2u);
    reader.endpoint->Flush();
    while (writer.endpoint->readable() == 0) {
      ASSERT_TRUE(fabric.Step());
      writer.Poll();
    }
    EXPECT_EQ(fabric.open_windows(), 1u);
    EXPECT_EQ(write(&writer, *source, 64, window->key()), WorkError::kNone);
    EXPECT_EQ(to[64], std::byte{7});
    std::array<std::byte, 2> out;
    writer.endpoint->Receive(out);
    writer.endpoint->Flush();
    if (i == 9) break;
    ASSERT_TRUE(reader.endpoint->CloseWindow(*window));
    const uint64_t work = reader.endpoint->Flush();
    fabric.Run();
    while (!reader.endpoint->finished(work)) ASSERT_GT(reader.Poll(), 0u);
    EXPECT_EQ(fabric.open_windows(), 0u);
  }
  // Open, but not for this peer; nor does the registration's own key serve.
  EXPECT_EQ(write(&third, *others, 64, window->key()), WorkError::kPeerRefused);
  ASSERT_TRUE(reader.endpoint->CloseWindow(*window));
  reader.endpoint->Flush();
  fabric.Run();
  to[64] = std::byte{0};
  EXPECT_EQ(write(&writer, *source, 64, window->key()), WorkError::kPeerRefused);
  EXPECT_EQ(to[64], std::byte{0});
}

TEST(EndpointTest, WindowsAreForMemoryThatIsRegisteredForThem) {
  for (const Access access : {Access::kWriteHere, Access::kPeerWrites, Access::kWindows}) {
    test::FakeFabric fabric;
    fabric.set_immediate(true);
    Side reader(&fabric), writer(&fabric);
    Connect(&reader, &writer);
    std::vector<std::byte> from(64), to(64);
    const auto source = *writer.device->Register(from, Access::kReadHere);
    const auto landing = *reader.device->Register(to, access);
    const auto window = *reader.device->MakeWindow();
    ASSERT_TRUE(reader.endpoint->OpenWindow(window.get(), *landing, to));
    reader.endpoint->Flush();
    reader.Poll();
    EXPECT_EQ(reader.endpoint->error(),
              access == Access::kWindows ? WorkError::kNone : WorkError::kLocal);
    if (access != Access::kWindows) continue;
    ASSERT_TRUE(writer.endpoint->Write({.data = from,
                                        .address = reinterpret_cast<uint64_t>(to.data()),
                                        .key = landing->remote_key()},
                                       source->local_key()));
    writer.endpoint->Flush();
    writer.Poll();
    EXPECT_EQ(writer.endpoint->error(), WorkError::kPeerRefused);
  }
}

// A reader that does not read stops its writer, and neither loses anything.
TEST(EndpointTest, CreditsHoldBackTheSender) {
  test::FakeFabric fabric;
  const Endpoint::Options options{
      .receives = 4, .sends = 8, .queue_depth = 16, .message_bytes = 64};
  Side a(&fabric, options), b(&fabric, options);
  Connect(&a, &b);
  const std::string text(1000, 'x');
  size_t sent = 0;
  for (int i = 0; i < 20; ++i) {
    sent += a.endpoint->Send(AsBytes(text).subspan(0, std::min<size_t>(64, text.size() - sent)));
    a.endpoint->Flush();
    fabric.Run();
    a.Poll();
    b.Poll();
    b.endpoint->Flush();
  }
  EXPECT_EQ(sent, 3u * 64);  // The fourth credit is kept.
  EXPECT_EQ(a.endpoint->credits(), 1u);
  std::array<std::byte, 192> out;
  EXPECT_EQ(b.endpoint->Receive(out), 192u);
  b.endpoint->Flush();
  fabric.Run();
  a.Poll();
  EXPECT_EQ(a.endpoint->credits(), 4u);
}

// The fewest receives that are allowed: a write that tells, and the bytes behind it, need one each
// and leave one.
TEST(EndpointTest, TwoReceivesAreEnough) {
  test::FakeFabric fabric;
  const Endpoint::Options options{.receives = 2, .sends = 2};
  Side a(&fabric, options), b(&fabric, options);
  Connect(&a, &b);
  std::vector<std::byte> from(64), to(64);
  const auto source = *a.device->Register(from, Access::kReadHere);
  const auto landing = *b.device->Register(to, Access::kPeerWrites);
  const RemoteWrite write = {.data = from,
                             .address = reinterpret_cast<uint64_t>(to.data()),
                             .key = landing->remote_key(),
                             .told = true};
  uint32_t written = 0;
  size_t received = 0;
  for (int i = 0; i < 1000 && received < 50; ++i) {
    if (written == received && a.endpoint->Write(write, source->local_key())) ++written;
    if (written > received) a.endpoint->Send(AsBytes("x"));
    a.endpoint->Flush();
    fabric.Run();
    b.Poll();
    std::array<std::byte, 8> out;
    for (uint32_t tag = 0; b.endpoint->TakeTag(&tag);) {
    }
    received += b.endpoint->Receive(out);
    b.endpoint->Flush();
    fabric.Run();
    a.Poll();
  }
  EXPECT_GE(received, 50u);
  EXPECT_FALSE(a.endpoint->broken() || b.endpoint->broken());
}

TEST(EndpointTest, EveryFailureBreaksThisPeerAndSaysWhy) {
  struct Case {
    const char* name;
    WorkError error;
    const char* words;
    bool (*fail)(test::FakeFabric*, Side* a, std::unique_ptr<Side>* b, Memory* landing, Bytes to);
  };
  std::vector<std::byte> from(64), to(64);
  static const auto write = [](Side* a, ConstBytes data, uint64_t address, uint32_t key,
                               uint32_t local_key) {
    return a->endpoint->Write({.data = data, .address = address, .key = key}, local_key);
  };
  static Bytes source;
  static uint32_t source_key = 0;
  source = from;
  const Case cases[] = {
      {"the peer is gone", WorkError::kPeerSilent, "does not answer",
       [](test::FakeFabric*, Side* a, std::unique_ptr<Side>* b, Memory*, Bytes) {
         b->reset();
         return a->endpoint->Send(AsBytes("hello")) == 5;
       }},
      {"the link is down", WorkError::kPeerSilent, "does not answer",
       [](test::FakeFabric* fabric, Side* a, std::unique_ptr<Side>*, Memory*, Bytes) {
         fabric->set_link(false);
         return a->endpoint->Send(AsBytes("hello")) == 5;
       }},
      {"wrong key", WorkError::kPeerRefused, "refused",
       [](test::FakeFabric*, Side* a, std::unique_ptr<Side>*, Memory* landing, Bytes to_bytes) {
         return write(a, source, reinterpret_cast<uint64_t>(to_bytes.data()),
                      landing->remote_key() + 1, source_key);
       }},
      {"past the end", WorkError::kPeerRefused, "refused",
       [](test::FakeFabric*, Side* a, std::unique_ptr<Side>*, Memory* landing, Bytes to_bytes) {
         return write(a, source, reinterpret_cast<uint64_t>(to_bytes.data()) + 1,
                      landing->remote_key(), source_key);
       }},
      {"not our memory", WorkError::kLocal, "wrong memory",
       [](test::FakeFabric*, Side* a, std::unique_ptr<Side>*, Memory* landing, Bytes to_bytes) {
         return write(a, source, reinterpret_cast<uint64_t>(to_bytes.data()), landing->remote_key(),
                      source_key + 1000);
       }},
      {"the device takes no work", WorkError::kLocal, "a fault",
       [](test::FakeFabric* fabric, Side* a, std::unique_ptr<Side>*, Memory*, Bytes) {
         fabric->FailCall(1);
         return a->endpoint->Send(AsBytes("hello")) == 5;
       }},
  };
  for (const Case& c : cases) {
    test::FakeFabric fabric;
    auto b = std::make_unique<Side>(&fabric);
    Side a(&fabric);
    Connect(&a, b.get());
    Device& device = *a.device;
    const auto memory = *device.Register(from, Access::kReadHere);
    const auto landing = *device.Register(to, Access::kPeerWrites);
    source_key = memory->local_key();
    ASSERT_TRUE(c.fail(&fabric, &a, &b, landing.get(), to)) << c.name;
    a.endpoint->Flush();
    fabric.Run();
    while (a.Poll() > 0) {
    }
    EXPECT_TRUE(a.endpoint->broken()) << c.name;
    EXPECT_EQ(a.endpoint->error(), c.error) << c.name;
    EXPECT_THAT(a.endpoint->why(), HasSubstr(c.words)) << c.name;
    // It takes nothing more, and does not hang.
    EXPECT_EQ(a.endpoint->Send(AsBytes("more")), 0u);
    EXPECT_FALSE(write(&a, from, 0, 0, 0));
    a.endpoint->Flush();
  }
}

// Tags that nobody waits for must not fill our memory.
TEST(EndpointTest, AFloodOfTagsEndsTheConnection) {
  test::FakeFabric fabric;
  fabric.set_immediate(true);
  Side a(&fabric), b(&fabric);
  Connect(&a, &b);
  std::vector<std::byte> from(8), to(8);
  const auto source = *a.device->Register(from, Access::kReadHere);
  const auto landing = *b.device->Register(to, Access::kPeerWrites);
  for (int i = 0; i < 5000 && !b.endpoint->broken(); ++i) {
    (void)a.endpoint->Write({.data = from,
                             .address = reinterpret_cast<uint64_t>(to.data()),
                             .key = landing->remote_key(),
                             .told = true},
                            source->local_key());
    a.endpoint->Flush();
    b.Poll();
    b.endpoint->Flush();
    a.Poll();
  }
  EXPECT_TRUE(b.endpoint->broken());
}

TEST(EndpointTest, AnyCallThatFailsLeavesNothingBehind) {
  for (uint32_t call = 1; call <= 6; ++call) {
    test::FakeFabric fabric;
    auto device = *fabric.Open((*fabric.Ports())[0]);
    auto queue = *device->MakeCompletionQueue(Endpoint::CompletionsMax({}));
    fabric.FailCall(call);
    auto endpoint = Endpoint::Create(device.get(), queue.get(), {});
    if (endpoint.ok()) {
      PeerAddress peer = (*endpoint)->address();
      const absl::Status connected = (*endpoint)->Connect(peer);
      EXPECT_EQ(connected.ok(), call > 4) << call;
      peer.receives = 0;
      EXPECT_FALSE((*endpoint)->Connect(peer).ok());
    } else {
      EXPECT_LE(call, 3u);
    }
    endpoint = absl::UnknownError("");
    EXPECT_EQ(fabric.queue_pairs() + fabric.regions(), 0u) << call;
  }
}

TEST(RegisteredMemoryTest, IsCutWhereTheDeviceWantsItAndNeverInsideARecord) {
  constexpr uint64_t kUnit = 3_MiB;
  std::vector<std::byte> memory(20 * kUnit);
  test::FakeFabric fabric;
  const auto device = *fabric.Open((*fabric.Ports())[0]);
  {
    const auto whole = RegisteredMemory::Register(device.get(), memory, Access::kReadHere, kUnit);
    ASSERT_TRUE(whole.ok());
    EXPECT_EQ(whole->pieces(), 1u);
  }
  fabric.set_region_bytes_max(25_MiB);
  const auto cut = RegisteredMemory::Register(device.get(), memory, Access::kReadHere, kUnit);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_GT(cut->pieces(), 1u);
  std::set<uint32_t> keys;
  for (uint64_t i = 0; i < 20; ++i) {
    uint32_t key = 0;
    ASSERT_TRUE(cut->Find(ConstBytes(memory).subspan(i * kUnit, kUnit), &key)) << i;
    keys.insert(key);
  }
  EXPECT_EQ(keys.size(), cut->pieces());
  uint32_t key = 0;
  const std::byte other{};
  EXPECT_FALSE(cut->Find({&other, 1}, &key));
  fabric.set_region_bytes_max(1_MiB);
  EXPECT_FALSE(RegisteredMemory::Register(device.get(), memory, Access::kReadHere, kUnit).ok());
}

TEST(PortTest, IsChosenByNameAddressAndKind) {
  Port ib{.device = "mlx5_0", .active = true, .gid_index = 0};
  Port v2{.device = "mlx5_1",
          .active = true,
          .ethernet = true,
          .gid_index = 3,
          .gid_kind = GidKind::kRoceV2};
  v2.gid[10] = v2.gid[11] = std::byte{0xff};
  v2.gid[12] = std::byte{10};
  Port local = v2;
  local.gid_index = 1;
  local.gid[12] = std::byte{0xfe};
  local.gid[10] = local.gid[11] = std::byte{0};
  Port down = v2;
  down.device = "mlx5_2";
  down.active = false;
  const std::vector<Port> ports = {ib, local, v2, down};
  std::string why;
  EXPECT_EQ(ChoosePort(ports, "", -1, nullptr, &why), &ports[2]);
  EXPECT_EQ(ChoosePort(ports, "", -1, &local.gid, &why), &ports[1]);
  EXPECT_EQ(ChoosePort(ports, "mlx5_0:1", -1, &local.gid, &why), &ports[0]);
  EXPECT_EQ(ChoosePort(ports, "mlx5_1", 1, nullptr, &why), &ports[1]);
  EXPECT_EQ(ChoosePort(ports, "mlx5_2", -1, nullptr, &why), nullptr);
  EXPECT_THAT(why, HasSubstr("active"));
  EXPECT_EQ(ChoosePort(ports, "mlx5_9", -1, nullptr, &why), nullptr);
  EXPECT_THAT(why, HasSubstr("mlx5_9"));
  EXPECT_EQ(ChoosePort(ports, "", 7, nullptr, &why), nullptr);
  EXPECT_THAT(why, HasSubstr("GID index 7"));
  EXPECT_EQ(ChoosePort({}, "", -1, nullptr, &why), nullptr);
  EXPECT_THAT(why, HasSubstr("no RDMA device"));
}

TEST(PortWishTest, IsWhatPeopleWrite) {
  EXPECT_EQ(ParsePortWish("auto")->device, "");
  EXPECT_TRUE(ParsePortWish("off")->off);
  EXPECT_EQ(ParsePortWish("mlx5_0:2/3")->device, "mlx5_0:2");
  EXPECT_EQ(ParsePortWish("mlx5_0:2/3")->gid_index, 3);
  EXPECT_EQ(ParsePortWish("rxe0/0")->gid_index, 0);
  for (const char* wrong : {"", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0/", "a/-1", "/3"}) {
    EXPECT_FALSE(ParsePortWish(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace reprise::rdma
