// Real verbs: a daemon and clients over two Soft-RoCE devices, in the virtual machine of
// tests/rdma/vm.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "client/channel.h"
#include "protocol/base/prng.h"
#include "protocol/rdma/lib_verbs.h"
#include "protocol/wire/control.pb.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

class RdmaTest : public DaemonTest {
 protected:
  void SetUp() override {
    ASSERT_NE(std::getenv("RP_VM"), nullptr) << "run it by tests/rdma/vm";
    DaemonTest::SetUp();
    DaemonConfig config;
    config.tcp = true;
    config.tcp_host = "10.77.0.1";
    config.dram_bytes = "64MiB";
    config.ssd_bytes = "0B";
    config.staging_slots = 64;
    config.shards = 2;
    ASSERT_TRUE(Start(config));
  }

  static std::unique_ptr<Client> ConnectRdma(const std::string& address,
                                             Nanos deadline_ns = 20 * kSecond) {
    auto client = Client::Connect({.address = address,
                                   .deadline_ns = deadline_ns,
                                   .connect_timeout_ns = 20 * kSecond,
                                   .transport = Transport::kRdma});
    EXPECT_TRUE(client.ok()) << client.status();
    if (!client.ok()) return nullptr;
    EXPECT_EQ((*client)->transport(), "rdma");
    return *std::move(client);
  }
  std::unique_ptr<Client> ConnectRdma() { return ConnectRdma(tcp_address()); }

  Json Rdma() { return Status()["rdma"]; }
  // Nothing of a connection is left at the daemon.
  void ExpectNothingLeft() {
    Json rdma;
    for (int i = 0; i < 500; ++i) {
      rdma = Rdma();
      if (rdma["queue_pairs"] == 0) break;
      usleep(20'000);
    }
    EXPECT_EQ(rdma["queue_pairs"], 0) << rdma;
    EXPECT_EQ(rdma["message_bytes"], 0) << rdma;
    EXPECT_EQ(rdma["staging_bytes"], 0) << rdma;
  }
};

// What a client does, by hand: for what no client does.
class RawRdma {
 public:
  explicit RawRdma(const std::string& address)
      : verbs_(rdma::MakeLibVerbs()), deadline_(SystemClock().Now() + 60 * kSecond) {
    auto connection = Connection::Open(address, 0, deadline_);
    EXPECT_TRUE(connection.ok()) << connection.status();
    rdma::Gid gid;
    const bool known = (*connection)->LocalGid(&gid);
    auto link = RdmaLink::Create(
        verbs_.get(), {.local = known ? &gid : nullptr, .daemon = "raw " + std::to_string(++made)});
    EXPECT_TRUE(link.ok()) << link.status();
    wire::HelloRequest request;
    request.set_protocol_version(wire::kProtocolVersion);
    request.set_client_name("raw");
    request.set_staging_slots(2);
    request.set_rdma_address(&(*link)->address(), sizeof(rdma::PeerAddress));
    channel_ = std::make_unique<Channel>(*std::move(connection));
    const auto reply =
        channel_->Call(wire::Opcode::kHello, request.SerializeAsString(), {}, 16 * 1024, deadline_);
    EXPECT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(hello_.ParseFromArray(reply->body.data(), static_cast<int>(reply->body.size())));
    channel_->set_store_id(LoadLe<uint64_t>(hello_.store_uuid().data()));
    rdma::PeerAddress peer;
    EXPECT_EQ(hello_.rdma_address().size(), sizeof(peer)) << hello_.rdma_declined();
    std::memcpy(&peer, hello_.rdma_address().data(), sizeof(peer));
    staging_.resize(uint64_t{2} * hello_.record_bytes());
    Connection& open = channel_->connection();
    EXPECT_TRUE((*link)
                    ->Connect(peer, open.descriptor(), staging_, hello_.record_bytes(),
                              hello_.rdma_staging_address(),
                              hello_.rdma_staging_key() + wrong_staging_key)
                    .ok());
    open.UseRdma(*std::move(link));
  }
  ~RawRdma() { channel_.reset(); }

  RdmaLink& link() { return *channel_->connection().rdma(); }
  Channel& channel() { return *channel_; }
  Instant deadline() const { return deadline_; }
  uint32_t record_bytes() const { return hello_.record_bytes(); }
  uint32_t OpenNamespace(const Manifest& manifest) {
    wire::OpenNamespaceRequest request;
    request.set_manifest(EncodeManifest(manifest));
    const auto reply = channel_->Call(wire::Opcode::kOpenNamespace, request.SerializeAsString(), {},
                                      1024, deadline_);
    EXPECT_TRUE(reply.ok()) << reply.status();
    wire::OpenNamespaceReply body;
    EXPECT_TRUE(body.ParseFromArray(reply->body.data(), static_cast<int>(reply->body.size())));
    return body.namespace_id();
  }
  absl::StatusOr<Reply> Fetch(uint32_t name_space, std::span<const BlockKey> keys,
                              const wire::Landing& landing) {
    std::string body;
    wire::Append(&body, wire::FetchRequest{.namespace_id = name_space,
                                           .key_count = static_cast<uint32_t>(keys.size()),
                                           .landing = landing});
    wire::AppendArray<BlockKey>(&body, keys);
    RP_TRY(channel_->Send(wire::Opcode::kFetch, body, {}, deadline_));
    while (true) {  // To the last reply.
      auto reply = channel_->Receive(sizeof(wire::GetReply), deadline_);
      if (!reply.ok() || !reply->more()) return reply;
    }
  }

  static inline uint32_t wrong_staging_key = 0;
  static inline int made = 0;

 private:
  std::unique_ptr<rdma::Verbs> verbs_;
  Instant deadline_;
  std::vector<std::byte> staging_;
  wire::HelloReply hello_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(RdmaTest, TenThousandRecordsGoThereAndBack) {
  constexpr uint32_t kRecords = 10'000, kChain = 500;
  const auto client = ConnectRdma();
  ASSERT_NE(client, nullptr);
  for (uint32_t done = 0; done < kRecords; done += kChain) {
    const Chain chain(NanoManifest(), 1 + done, kChain);
    ASSERT_TRUE(PutChain(client.get(), chain));
    ASSERT_EQ(GetRun(client.get(), chain), kChain);  // Every byte is compared.
  }
  const Json rdma = Rdma();
  EXPECT_GE(rdma["writes"], kRecords);
  EXPECT_EQ(Status()["traffic"]["failed_checks"], 0);
}

TEST_F(RdmaTest, WindowsAndLandingZonesHoldTheRightBytes) {
  const auto client = ConnectRdma();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 7, 40);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const uint32_t name_space = *client->OpenNamespace(chain.manifest());
  Prng prng(3);
  for (const size_t bytes : {1u, 5'000u, 28'672u, 200'000u, 1'500'000u}) {
    std::vector<std::byte> snapshot(bytes);
    for (std::byte& b : snapshot) b = static_cast<std::byte>(prng.Next());
    const wire::WindowKey key = {.prefix = chain.keys()[5], .position = bytes};
    ASSERT_EQ(*client->PutWindow(name_space, key, bytes, snapshot), Outcome::kOk) << bytes;
    const auto got = client->GetWindow(name_space, key);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(got->bytes == snapshot) << bytes;
  }
  EXPECT_EQ(
      client->GetWindow(name_space, {.prefix = chain.keys()[6], .position = 1}).status().code(),
      absl::StatusCode::kNotFound);

  const uint64_t record_bytes = client->record_bytes();
  std::vector<std::byte> memory(record_bytes * 41, std::byte{0x55});
  {
    const auto zone = *client->RegisterLanding(memory);
    const auto landed = client->Fetch(name_space, chain.keys(), zone.get(), record_bytes);
    ASSERT_TRUE(landed.ok()) << landed.status();
    EXPECT_EQ(landed->records, 40u);
    EXPECT_EQ(landed->stopped_by, Outcome::kOk);
    for (uint32_t i = 0; i < 40; ++i) {
      EXPECT_TRUE(
          chain.IsRecord(i, ConstBytes(memory).subspan((i + 1) * record_bytes, record_bytes)));
    }
    EXPECT_EQ(memory[record_bytes - 1], std::byte{0x55});
    EXPECT_FALSE(client->Fetch(name_space, chain.keys(), zone.get(), record_bytes + 1).ok());
  }
  // Device memory: this driver has none, and says so.
  const auto device = client->RegisterDeviceLanding(0, 0, 4096);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition) << device.status();
  EXPECT_THAT(Message(device.status()), HasSubstr("dma-buf"));
}

TEST_F(RdmaTest, AutoTakesRdmaAndTheOthersAreAsAsked) {
  const std::string address = tcp_address();
  const auto automatic = Client::Connect({.address = address, .connect_timeout_ns = 20 * kSecond});
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ((*automatic)->transport(), "rdma") << (*automatic)->transport_note();
  const auto tcp = Client::Connect({.address = address, .transport = Transport::kTcp});
  EXPECT_EQ((*tcp)->transport(), "tcp");
  const auto off = Client::Connect({.address = address, .rdma_device = "off"});
  EXPECT_EQ((*off)->transport(), "tcp");
  const auto missing = Client::Connect({.address = address, .rdma_device = "mlx5_7"});
  EXPECT_EQ((*missing)->transport(), "tcp");
  EXPECT_THAT((*missing)->transport_note(), HasSubstr("mlx5_7"));
  const auto insisted =
      Client::Connect({.address = address, .transport = Transport::kRdma, .rdma_device = "mlx5_7"});
  EXPECT_THAT(Message(insisted.status()), HasSubstr("mlx5_7"));
  const Chain chain(NanoManifest(), 9, 20);
  EXPECT_TRUE(PutChain(automatic->get(), chain));
  EXPECT_EQ(GetRun(tcp->get(), chain), 20u);
  const auto doctor = RunReprise({"doctor"}, address);
  EXPECT_THAT(doctor.out, HasSubstr("rxe0:1"));
  EXPECT_THAT(doctor.out, HasSubstr("10.77.0.1"));
  EXPECT_THAT(doctor.out, HasSubstr("memory windows: keys end with their request"));
}

TEST_F(RdmaTest, WrongKeysAndShortRegionsEndThatConnectionAlone) {
  const auto good = ConnectRdma();
  ASSERT_NE(good, nullptr);
  const Chain chain(NanoManifest(), 11, 30);
  ASSERT_TRUE(PutChain(good.get(), chain));
  const std::string address = tcp_address();
  {
    RawRdma raw(address);
    const uint32_t name_space = raw.OpenNamespace(chain.manifest());
    std::vector<std::byte> memory(10 * raw.record_bytes());
    wire::Landing landing = *raw.link().OpenLanding(memory, memory, raw.deadline());
    // Too small by what the request says of itself: refused, and the connection lives on.
    const auto refused = raw.Fetch(name_space, chain.keys(), landing);
    ASSERT_TRUE(refused.ok()) << refused.status();
    EXPECT_EQ(refused->outcome(), Outcome::kInvalid);
    const auto taken = raw.Fetch(name_space, std::span(chain.keys()).first(8), landing);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_TRUE(
        chain.IsRecord(7, ConstBytes(memory).subspan(7 * raw.record_bytes(), raw.record_bytes())));
    // Too small in truth: the device refuses it.
    landing.bytes *= 10;
    EXPECT_FALSE(raw.Fetch(name_space, chain.keys(), landing).ok());
  }
  {
    RawRdma raw(address);
    const uint32_t name_space = raw.OpenNamespace(chain.manifest());
    std::vector<std::byte> memory(40 * raw.record_bytes());
    wire::Landing landing = *raw.link().OpenLanding(memory, memory, raw.deadline());
    landing.key ^= 0xff;
    EXPECT_FALSE(raw.Fetch(name_space, chain.keys(), landing).ok());
  }
  RawRdma::wrong_staging_key = 77;
  {
    RawRdma raw(address);
    EXPECT_FALSE(raw.link().Prove(raw.deadline()).ok());
  }
  RawRdma::wrong_staging_key = 0;
  EXPECT_EQ(GetRun(good.get(), chain), 30u);
  EXPECT_GE(Rdma()["errors"]["peer_refused"], 2);
  EXPECT_EQ(Rdma()["queue_pairs"], 1);
}

TEST_F(RdmaTest, AKeyEndsWithItsRequest) {
  const auto good = ConnectRdma();
  ASSERT_NE(good, nullptr);
  const Chain chain(NanoManifest(), 12, 30);
  ASSERT_TRUE(PutChain(good.get(), chain));
  RawRdma raw(tcp_address());
  const uint32_t name_space = raw.OpenNamespace(chain.manifest());
  const uint64_t bytes = chain.size() * uint64_t{raw.record_bytes()};
  std::vector<std::byte> memory(2 * bytes, std::byte{0x55});
  const Bytes part = Bytes(memory).first(bytes);
  wire::Landing landing;
  for (int i = 0; i < 300; ++i) {  // More often than a window has keys.
    const uint32_t before = landing.key;
    landing = *raw.link().OpenLanding(memory, part, raw.deadline());
    EXPECT_NE(landing.key, before);
    const auto fetched = raw.Fetch(name_space, std::span(chain.keys()).first(1), landing);
    ASSERT_TRUE(fetched.ok()) << i << ": " << fetched.status();
    ASSERT_TRUE(raw.link().CloseLanding(raw.deadline()).ok());
    EXPECT_TRUE(chain.IsRecord(0, part.first(raw.record_bytes())));
  }
  EXPECT_EQ(memory[bytes], std::byte{0x55});
  std::fill(memory.begin(), memory.end(), std::byte{0x55});
  EXPECT_FALSE(raw.Fetch(name_space, chain.keys(), landing).ok());
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(),
                          [](std::byte byte) { return byte == std::byte{0x55}; }));
  EXPECT_GE(Rdma()["errors"]["peer_refused"], 1);
  EXPECT_EQ(GetRun(good.get(), chain), chain.size());
}

TEST_F(RdmaTest, ADeadLinkIsNoticedAndALivingOneIsUsedAgain) {
  const auto client = ConnectRdma();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 13, 200);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const uint32_t name_space = *client->OpenNamespace(chain.manifest());
  ASSERT_EQ(std::system("ip link set rb down"), 0);
  const Instant begin = SystemClock().Now();
  const auto lease = client->Acquire(name_space, chain.keys());
  EXPECT_FALSE(lease.ok());
  EXPECT_LT(SystemClock().Now() - begin, 15 * kSecond);
  ASSERT_EQ(
      std::system("ip link set rb up && ip route add 10.77.0.1 dev rb src 10.77.0.2 table 77"), 0);
  // Whoever insists on RDMA waits for the pause to end; the store has lost nothing.
  std::unique_ptr<Client> again;
  for (int i = 0; i < 60 && again == nullptr; ++i) {
    auto made = Client::Connect({.address = tcp_address(),
                                 .deadline_ns = 20 * kSecond,
                                 .connect_timeout_ns = 5 * kSecond,
                                 .transport = Transport::kRdma});
    if (made.ok()) again = *std::move(made);
    if (again == nullptr) usleep(500'000);
  }
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(GetRun(again.get(), chain), 200u);
}

// A client that loads and stores until it is killed.
void LoadAndStoreForEver(const std::string& address, uint64_t seed) {
  auto client = Client::Connect(
      {.address = address, .connect_timeout_ns = 20 * kSecond, .transport = Transport::kRdma});
  if (!client.ok()) _exit(1);
  const Chain chain(NanoManifest(), 17, 100);
  const Chain own(NanoManifest(), seed, 64);
  const uint32_t name_space = *(*client)->OpenNamespace(chain.manifest());
  std::vector<std::vector<std::byte>> records;
  std::vector<ConstBytes> views;
  for (uint32_t i = 0; i < own.size(); ++i) records.push_back(own.Record(i));
  for (const auto& record : records) views.push_back(record);
  std::vector<Outcome> outcomes(views.size());
  while (true) {
    if (!(*client)->Acquire(name_space, chain.keys()).ok()) _exit(2);
    if (!(*client)->Put(name_space, views, wire::Durability::kRelaxed, outcomes).ok()) _exit(3);
    if (!(*client)->Evict(name_space, own.keys()).ok()) _exit(4);
  }
}

TEST_F(RdmaTest, AHundredClientsKilledInMidTransferLeaveNothing) {
  const auto client = ConnectRdma();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 17, 100);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const std::string address = tcp_address();
  Prng prng(5);
  constexpr int kAtOnce = 4;
  for (int round = 0; round < 100 / kAtOnce; ++round) {
    std::vector<pid_t> children;
    for (int i = 0; i < kAtOnce; ++i) {
      const pid_t child = fork();
      if (child == 0)
        LoadAndStoreForEver(address, 1000 + prng.Next() % 1000 + static_cast<uint64_t>(i) * 1000);
      children.push_back(child);
    }
    usleep(static_cast<useconds_t>(300'000 + prng.Below(400'000)));
    for (const pid_t child : children) {
      kill(child, SIGKILL);
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFSIGNALED(status)) << "a client ended by itself with " << WEXITSTATUS(status);
    }
  }
  EXPECT_EQ(GetRun(client.get(), chain), 100u);
  const Json rdma = Rdma();
  EXPECT_GE(rdma["accepted"], 50) << rdma;  // Most were connected when they were killed.
  EXPECT_EQ(Status()["traffic"]["failed_checks"], 0);
  for (int i = 0; i < 500 && Rdma()["queue_pairs"] != 1; ++i) usleep(20'000);
  EXPECT_EQ(Rdma()["queue_pairs"], 1);
  EXPECT_EQ(Status()["clients"]["leases"], 0);
}

TEST_F(RdmaTest, AThousandConnectionsLeaveNothing) {
  const std::string address = tcp_address();
  for (int i = 0; i < 1000; ++i) {
    const auto client = Client::Connect({.address = address,
                                         .connect_timeout_ns = 20 * kSecond,
                                         .transport = Transport::kRdma,
                                         .staging_slots = 2});
    ASSERT_TRUE(client.ok()) << i << ": " << client.status();
  }
  ExpectNothingLeft();
  EXPECT_EQ(Rdma()["accepted"], 1000);
}

TEST_F(RdmaTest, AKilledDaemonIsNoticedAtOnce) {
  const auto client = ConnectRdma();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 19, 10);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const uint32_t name_space = *client->OpenNamespace(chain.manifest());
  Kill();
  const Instant begin = SystemClock().Now();
  const auto lease = client->Acquire(name_space, chain.keys());
  EXPECT_EQ(lease.status().code(), absl::StatusCode::kUnavailable) << lease.status();
  EXPECT_LT(SystemClock().Now() - begin, 10 * kSecond);
}

}  // namespace
}  // namespace reprise::test
