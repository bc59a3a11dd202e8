#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/base/prng.h"
#include "protocol/rdma/endpoint.h"
#include "protocol/wire/control.pb.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/messages.h"
#include "tests/sim/corpus.h"
#include "tests/sim/limits.h"
#include "tests/sim/model.h"
#include "tests/sim/outcomes.h"
#include "tests/sim/sim_stream.h"

namespace reprise::sim {

// What the clients of a run share.
struct ClientContext {
  const Limits* limits = nullptr;
  const Faults* faults = nullptr;  // All off once the faults have stopped.
  Corpus* corpus = nullptr;
  Model* model = nullptr;
  Outcomes* outcomes = nullptr;
  uint64_t store_id = 0;
  int64_t ops_left = 0;  // Requests that may still be started, by all clients together.
  bool damaged = false;  // The medium has been damaged: failed checks are in order.
  bool disk_failed = false;
  rdma::Device* rdma_device = nullptr;  // The clients'; null: there is no RDMA in this run.
  bool rdma_failed = false;             // A device has refused a call: connections may break.
  std::function<void(const std::string&)> fail;
  std::function<void(const std::string&)> trace;  // With --verbose.
  std::function<Link*()> connect;                 // To any shard.
};

// One client: real frames, byte by byte, over a Link. Keeps what each of its requests may be
// answered, and is itself late, silent, rude or gone when the run's faults say so.
class SimClient {
 public:
  SimClient(ClientContext* context, uint32_t number, uint64_t seed)
      : context_(context), number_(number), prng_(seed) {}

  void Tick();
  // The server died with the connection.
  void ServerDied();
  // Has nothing under way, and the connection has ended.
  bool idle() const { return link_ == nullptr; }

 private:
  enum class State : uint8_t {
    kAway,   // No connection.
    kHello,  // Hello, then the namespaces, are on their way.
    kReady,
    kSilent,   // Owes the server the rest of something: the server must end this.
    kLeaving,  // Starts nothing more.
  };
  // What a put's record is made to be.
  enum class Spoil : uint8_t { kNone, kPayload, kHeader, kNamespace, kTokens };
  struct PutItem {
    Spoil spoil = Spoil::kNone;
    Model::PutTicket ticket;  // Of unspoiled ones.
  };
  // A request under way: what it asked for, and what has come back.
  struct Request {
    wire::Opcode opcode = wire::Opcode::kLookup;
    std::string name;
    uint32_t name_space = 0;
    bool durable = false;
    std::vector<PutItem> puts;
    std::vector<BlockKey> keys;
    std::vector<wire::WindowKey> candidates;
    Corpus::WindowRef window;
    Spoil spoil = Spoil::kNone;  // Of a window.
    std::vector<Model::RemovalTicket> removals;
    wire::ControlRequest::RequestCase control = wire::ControlRequest::REQUEST_NOT_SET;
    std::optional<Outcome> expected;  // The only right answer.
    uint32_t records_received = 0;
    std::unique_ptr<std::vector<std::byte>> landing;  // Of a fetch.
    std::unique_ptr<rdma::Memory> region;
    std::unique_ptr<rdma::Window> key;  // Null: the region's own.
  };
  // A fetch whose key ends with `work`; its landing is kept until then.
  struct Ending {
    Request fetch;
    uint64_t work = 0;
  };
  struct RdmaEnd {
    std::unique_ptr<rdma::CompletionQueue> queue;
    std::unique_ptr<rdma::Endpoint> endpoint;
    std::string outbox;  // What the endpoint has not taken yet.
    std::vector<Ending> ending;
  };

  // sim_client.cc: the connection.
  void Connect();
  void Leave();
  void Drop();
  void ReadFrames();
  bool TakeFrame();
  void OnEnd();
  void OnFrame(const wire::FrameHeader& header, ConstBytes body, ConstBytes data);
  void OnHello(const wire::FrameHeader& header, ConstBytes body);
  void OnOpened(const wire::FrameHeader& header, ConstBytes body);
  void MakeTrouble();
  std::string Frame(wire::Opcode opcode, std::string_view body, uint64_t data_bytes, uint64_t id);
  void Send(Request request, std::string body, std::string_view data = {});
  void Fail(const std::string& what);

  // sim_client_rdma.cc: by the link, or by RDMA where it was agreed on.
  void OfferRdma(wire::HelloRequest* hello);
  void StartRdma(const wire::HelloReply& reply);
  void Write(std::string_view bytes);
  std::string Read(size_t bytes_max);
  void StartFetch();
  void EndFetch(Request fetch);
  ConstBytes Landed(const wire::FrameHeader& header, const Request& request, ConstBytes body);

  // sim_client_requests.cc: what it asks.
  void StartRequest();
  void StartPut();
  void StartGet();
  void StartLookup();
  void StartWindowPut();
  void StartWindowGet();
  void StartControl();
  void StartUnanswerable();
  void SendRudeBytes();
  std::string SpoiledRecord(const Corpus::BlockRef& block, uint32_t version, Spoil spoil);
  Corpus::WindowRef AnyWindow(uint32_t name_space);

  // sim_client_replies.cc: what it may be told.
  void OnReply(const wire::FrameHeader& header, Request* request, ConstBytes body, ConstBytes data);
  void OnPut(const wire::FrameHeader& header, Request* request, ConstBytes body);
  void OnPutOutcome(const Request& request, const PutItem& item, Outcome outcome);
  void OnGet(Request* request, ConstBytes body, ConstBytes data);
  void OnGetEnd(const wire::FrameHeader& header, const Request& request);
  void OnLookup(const wire::FrameHeader& header, Request* request, ConstBytes body);
  void OnWindowPut(const wire::FrameHeader& header, const Request& request);
  void OnWindowGet(const wire::FrameHeader& header, const Request& request, ConstBytes body,
                   ConstBytes data);
  void OnControl(const wire::FrameHeader& header, Request* request, ConstBytes body);
  void OnExplain(const wire::ExplainReply& explain);

  ClientContext* context_;
  uint32_t number_;
  Prng prng_;
  State state_ = State::kAway;
  Link* link_ = nullptr;
  std::unique_ptr<RdmaEnd> offered_, rdma_;
  uint64_t now_ = 0;
  uint64_t back_at_ = 0;     // kAway: when to connect again.
  uint64_t reads_from_ = 0;  // A slow reader does not read before.
  // Not an innocent any more: the server may end this connection without being asked to.
  bool provoked_ = false;
  bool refused_ = false;
  uint32_t requests_left_ = 0;  // On this connection.
  std::string inbox_;
  uint64_t next_request_id_ = 1;
  uint64_t hello_id_ = 0;
  std::array<uint64_t, Corpus::kNamespaces> open_ids_{};
  std::array<uint32_t, Corpus::kNamespaces> namespace_ids_{};
  std::map<uint64_t, Request> requests_;
};

}  // namespace reprise::sim
