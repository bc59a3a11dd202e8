#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "tests/sim/sim_client.h"

// A simulated client that goes on by RDMA: the same bytes through a queue pair, and records that
// are written into its memory.
namespace reprise::sim {

void SimClient::OfferRdma(wire::HelloRequest* hello) {
  if (context_->rdma_device == nullptr || !prng_.Chance(700)) return;
  rdma::Endpoint::Options options;
  options.receives = static_cast<uint32_t>(2 + prng_.Below(20));
  options.sends = static_cast<uint32_t>(1 + prng_.Below(8));
  auto end = std::make_unique<RdmaEnd>();
  auto queue = context_->rdma_device->MakeCompletionQueue(rdma::Endpoint::CompletionsMax(options));
  if (!queue.ok()) return;  // A fault that was meant for somebody else.
  end->queue = *std::move(queue);
  auto endpoint = rdma::Endpoint::Create(context_->rdma_device, end->queue.get(), options);
  if (!endpoint.ok()) return;
  end->endpoint = *std::move(endpoint);
  hello->set_rdma_address(&end->endpoint->address(), sizeof(rdma::PeerAddress));
  offered_ = std::move(end);
}

void SimClient::StartRdma(const wire::HelloReply& reply) {
  std::unique_ptr<RdmaEnd> end = std::exchange(offered_, nullptr);
  if (end == nullptr) {
    if (!reply.rdma_address().empty()) Fail("RDMA was granted to a client that did not ask");
    return;
  }
  if (reply.rdma_address().empty()) {
    if (reply.rdma_declined().empty()) Fail("RDMA was declined without a reason");
    return context_->outcomes->Count("rdma_declined");
  }
  rdma::PeerAddress peer;
  if (reply.rdma_address().size() != sizeof(peer)) return Fail("an RDMA address of another size");
  std::memcpy(&peer, reply.rdma_address().data(), sizeof(peer));
  context_->outcomes->Count("rdma_connected");
  rdma_ = std::move(end);
  if (!rdma_->endpoint->Connect(peer).ok()) {
    rdma_->endpoint->Break(rdma::WorkError::kLocal, "a fault at the client");
  }
}

void SimClient::Write(std::string_view bytes) {
  if (rdma_ == nullptr) return link_->Write(bytes);
  rdma_->outbox += bytes;
}

std::string SimClient::Read(size_t bytes_max) {
  if (rdma_ == nullptr) return link_->Read(bytes_max);
  rdma::Endpoint& endpoint = *rdma_->endpoint;
  std::array<rdma::Completed, 16> completed;
  for (size_t count = completed.size(); count == completed.size();) {
    count = *rdma_->queue->Poll(completed);
    for (size_t i = 0; i < count; ++i) endpoint.OnCompleted(completed[i]);
  }
  context_->outcomes->Count("rdma_key_ended", std::erase_if(rdma_->ending, [&](const Ending& one) {
                              return endpoint.finished(one.work);
                            }));
  std::string bytes(std::min(bytes_max, endpoint.readable()), '\0');
  bytes.resize(endpoint.Receive({reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
  rdma_->outbox.erase(0, endpoint.Send(AsBytes(rdma_->outbox)));
  endpoint.Flush();
  return bytes;
}

void SimClient::StartFetch() {
  Corpus& corpus = *context_->corpus;
  Request request{.opcode = wire::Opcode::kFetch, .name = "fetch"};
  request.name_space = static_cast<uint32_t>(prng_.Below(Corpus::kNamespaces));
  const auto chain = static_cast<uint32_t>(prng_.Below(corpus.chain_count()));
  const uint32_t count = corpus.depth(chain);
  request.keys = corpus.Keys(request.name_space, chain, 0, count);
  request.landing = std::make_unique<std::vector<std::byte>>(size_t{count} * Corpus::kRecordBytes);
  const bool window = prng_.Chance(700);
  auto region = context_->rdma_device->Register(
      *request.landing, window ? rdma::Access::kWindows : rdma::Access::kPeerWrites);
  if (!region.ok()) return;
  request.region = *std::move(region);
  wire::Landing landing = {.address = reinterpret_cast<uint64_t>(request.landing->data()),
                           .bytes = request.landing->size(),
                           .key = request.region->remote_key()};
  if (window) {
    auto made = context_->rdma_device->MakeWindow();
    if (!made.ok()) return;
    request.key = *std::move(made);
    if (!rdma_->endpoint->OpenWindow(request.key.get(), *request.region, *request.landing)) return;
    landing.key = request.key->key();
  }
  if (prng_.Chance(50)) {  // Too small for all of them.
    --landing.bytes;
    request.expected = Outcome::kInvalid;
  }
  std::string body;
  wire::Append(&body, wire::FetchRequest{.namespace_id = namespace_ids_[request.name_space],
                                         .key_count = count,
                                         .landing = landing});
  wire::AppendArray(&body, std::span<const BlockKey>(request.keys));
  Send(std::move(request), std::move(body));
}

void SimClient::EndFetch(Request fetch) {
  if (!rdma_->endpoint->CloseWindow(*fetch.key)) return;  // It ends with the window itself.
  const uint64_t work = rdma_->endpoint->Flush();
  rdma_->ending.push_back({std::move(fetch), work});
}

ConstBytes SimClient::Landed(const wire::FrameHeader& header, const Request& request,
                             ConstBytes body) {
  wire::GetReply reply;
  if (!wire::Decode(body, &reply) || reply.record_count == 0) return {};
  uint32_t tag = 0;
  if (!rdma_->endpoint->TakeTag(&tag) || tag != static_cast<uint32_t>(header.request_id)) {
    Fail("a fetch's reply came before its records");
    return {};
  }
  if (uint64_t{reply.first_index} + reply.record_count > request.keys.size()) return {};
  context_->outcomes->Count("rdma_fetched", reply.record_count);
  return ConstBytes(*request.landing)
      .subspan(size_t{reply.first_index} * Corpus::kRecordBytes,
               size_t{reply.record_count} * Corpus::kRecordBytes);
}

}  // namespace reprise::sim
