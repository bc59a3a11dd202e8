// One explanation:
//   StartExplain -> LookupRun over the chain -> where it stops -> WhyCall on the shard that would
//   own that block: is it pending, did it leave and why, is the window there -> when nothing is
//   known of it and it is the first block: LookupRun over the same tokens in every other namespace.
#include "server/op_explain.h"

#include <algorithm>

#include "protocol/identity/block_hash.h"
#include "server/lookup_run.h"
#include "server/operation.h"

namespace reprise::server {
namespace {

using storage::Departure;
using Absence = storage::WindowPool::Absence;
using Residency = storage::BlockStore::Residency;

std::string_view ReasonOf(Departure why) {
  switch (why) {
    case Departure::kUnknown:
      return "never_stored";
    case Departure::kEvictedDram:
    case Departure::kEvictedSsd:
    case Departure::kRemoved:
      return "evicted";
    case Departure::kFailedCheck:
    case Departure::kIoError:
      return "failed_check";
  }
  return "never_stored";
}

std::string_view DetailOf(Departure why) {
  switch (why) {
    case Departure::kUnknown:
      return "the store has not seen this block in this namespace, or so long ago that it has "
             "forgotten";
    case Departure::kEvictedDram:
      return "the block left DRAM and was not admitted to SSD; more dram.bytes, or ssd.admission = "
             "\"all\", keeps it longer";
    case Departure::kEvictedSsd:
      return "the block's SSD region was reclaimed for newer blocks; more ssd.bytes keeps it "
             "longer";
    case Departure::kFailedCheck:
      return "a check of the block's bytes failed when they were read from SSD, and it was "
             "withdrawn";
    case Departure::kIoError:
      return "the SSD failed while the block was read or written";
    case Departure::kRemoved:
      return "the block was evicted by an administrator";
  }
  return "";
}

std::string_view WindowName(Absence absence) {
  switch (absence) {
    case Absence::kPresent:
      return "found";
    case Absence::kNeverStored:
      return "none";
    case Absence::kExpired:
      return "expired";
    case Absence::kEvicted:
      return "evicted";
    case Absence::kSuperseded:
      return "superseded";
  }
  return "none";
}

class ExplainOperation final : public Operation {
 public:
  ExplainOperation(Connection* connection, const wire::FrameHeader& request,
                   const Connection::OpenNamespace& name_space, std::vector<TokenId> first_tokens,
                   std::vector<BlockKey> keys)
      : Operation(connection, request),
        name_space_(name_space),
        first_tokens_(std::move(first_tokens)),
        keys_(std::move(keys)) {}

  void Start(uint64_t token_count) {
    wire::ExplainReply& explain = *reply_.mutable_explain();
    explain.set_tokens(token_count);
    explain.set_asked_blocks(static_cast<uint32_t>(keys_.size()));
    explain.set_window("none");
    if (keys_.empty()) {
      Finish("too_short", "a hit is whole blocks of 128 tokens, and there is none in this many");
      return;
    }
    chain_.Start(
        &shard(), std::as_bytes(std::span(keys_)), static_cast<uint32_t>(keys_.size()),
        name_space_.index, LookupFor::kInspection,
        [](void* self) { static_cast<ExplainOperation*>(self)->OnChain(); }, this);
  }

 private:
  struct WhyCall final : ShardCall {
    ExplainOperation* operation = nullptr;
    BlockKey key;
    Departure why = Departure::kUnknown;

    void Execute(Shard& owner) override {
      why = owner.blocks().WhyAbsent(key);
      owner.Reply(this);
    }
    void Finished() override { operation->OnWhy(); }
  };
  struct WindowCall final : ShardCall {
    ExplainOperation* operation = nullptr;
    uint16_t name_space = 0;
    wire::WindowKey key;
    Absence absence = Absence::kNeverStored;

    void Execute(Shard& owner) override {
      absence = owner.windows().Explain(name_space, key, owner.now());
      owner.Reply(this);
    }
    void Finished() override { operation->OnWindow(); }
  };

  void OnChain() {
    std::vector<Residency> found;
    chain_.ForEach([&found, this](Residency residency) {
      pending_block_ = residency == Residency::kPending;
      if (residency == Residency::kAbsent || pending_block_) return false;
      found.push_back(residency);
      return true;
    });
    hit_blocks_ = static_cast<uint32_t>(found.size());
    wire::ExplainReply& explain = *reply_.mutable_explain();
    explain.set_hit_blocks(hit_blocks_);
    for (auto run = found.begin(); run != found.end();) {
      const auto end = std::find_if(run, found.end(), [run](Residency r) { return r != *run; });
      explain.add_tiers(std::string(*run == Residency::kDram ? "dram*" : "ssd*") +
                        std::to_string(end - run));
      run = end;
    }
    if (hit_blocks_ == 0) {
      OnWindow();
      return;
    }
    window_.operation = this;
    window_.name_space = name_space_.index;
    window_.key = {keys_[hit_blocks_ - 1], uint64_t{hit_blocks_} * kBlockTokens};
    shard().Call(ShardOf(window_.key.prefix, shard().shard_count()), &window_);
  }

  void OnWindow() {
    if (hit_blocks_ > 0) {
      reply_.mutable_explain()->set_window(std::string(WindowName(window_.absence)));
    }
    if (hit_blocks_ == keys_.size()) {
      Finish("hit", "every whole block of these tokens is stored");
      return;
    }
    wire::ExplainReply& explain = *reply_.mutable_explain();
    explain.set_block(ToHex(keys_[hit_blocks_]));
    explain.set_block_index(hit_blocks_);
    if (pending_block_) {
      Finish("pending", "the block is being put right now and waits for a free slot");
      return;
    }
    why_.operation = this;
    why_.key = keys_[hit_blocks_];
    shard().Call(ShardOf(why_.key, shard().shard_count()), &why_);
  }

  void OnWhy() {
    if (hit_blocks_ > 0 || why_.why != Departure::kUnknown) {
      Finish(ReasonOf(why_.why), DetailOf(why_.why));
      return;
    }
    others_ = shard().facts().namespaces->List();
    std::erase_if(others_, [this](const NamespaceTable::Known& known) {
      return known.index == name_space_.index || !known.manifest.has_value();
    });
    for (const auto& other : others_) {
      other_keys_.push_back(KeyOf(BlockHash(other.name_space, first_tokens_)));
    }
    elsewhere_.Start(
        &shard(), std::as_bytes(std::span(other_keys_)), static_cast<uint32_t>(other_keys_.size()),
        storage::BlockStore::kAnyNamespace, LookupFor::kInspection,
        [](void* self) { static_cast<ExplainOperation*>(self)->OnElsewhere(); }, this);
  }

  void OnElsewhere() {
    size_t index = 0;
    elsewhere_.ForEach([&index](Residency residency) {
      if (residency != Residency::kAbsent) return false;
      ++index;
      return true;
    });
    if (index == others_.size()) {
      Finish(ReasonOf(Departure::kUnknown), DetailOf(Departure::kUnknown));
      return;
    }
    const auto own = shard().facts().namespaces->List();
    const auto mine = std::find_if(own.begin(), own.end(), [this](const auto& known) {
      return known.index == name_space_.index;
    });
    for (const std::string& field : DifferingFields(*mine->manifest, *others_[index].manifest)) {
      reply_.mutable_explain()->add_differing_fields(field);
    }
    Finish("other_namespace", "the same tokens are stored in namespace " +
                                  ToHex(others_[index].name_space) + ", whose manifest differs");
  }

  void Finish(std::string_view reason, std::string_view detail) {
    reply_.mutable_explain()->set_reason(std::string(reason));
    reply_.mutable_explain()->set_detail(std::string(detail));
    SendLast(Outcome::kOk, reply_.SerializeAsString());
  }

  Connection::OpenNamespace name_space_;
  std::vector<TokenId> first_tokens_;  // Of the first block.
  std::vector<BlockKey> keys_;
  uint32_t hit_blocks_ = 0;
  bool pending_block_ = false;
  LookupRun chain_;
  WindowCall window_;
  WhyCall why_;
  std::vector<NamespaceTable::Known> others_;
  std::vector<BlockKey> other_keys_;
  LookupRun elsewhere_;
  wire::ControlReply reply_;
};

}  // namespace

void StartExplain(Connection* connection, const wire::FrameHeader& header,
                  const Connection::OpenNamespace& name_space, const wire::ExplainRequest& request,
                  std::vector<BlockKey> keys) {
  (new ExplainOperation(connection, header, name_space,
                        {request.tokens().begin(), request.tokens().end()}, std::move(keys)))
      ->Start(request.token_count());
}

}  // namespace reprise::server
