#include "protocol/rdma/lib_verbs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "protocol/base/check.h"

namespace reprise::rdma {
namespace {

// What a lost packet costs: the device sends again after 4.096 us * 2^16 = 0.27 s, six times at
// most. Seven would mean "for ever" to some drivers.
constexpr uint8_t kAckTimeout = 16;
constexpr uint8_t kRetries = 6;
constexpr uint8_t kNoReceiveWait = 12;  // 0.64 ms. Credits keep it from happening.
constexpr uint8_t kHopsMax = 64;
constexpr size_t kGidsMax = 512;
constexpr size_t kPostMax = 64;

template <typename T, int (*kDestroy)(T*)>
struct Destroyer {
  void operator()(T* object) const { (void)kDestroy(object); }
};
template <typename T, int (*kDestroy)(T*)>
using Owned = std::unique_ptr<T, Destroyer<T, kDestroy>>;

using OwnedContext = Owned<ibv_context, ibv_close_device>;
using OwnedDomain = Owned<ibv_pd, ibv_dealloc_pd>;
using OwnedRegion = Owned<ibv_mr, ibv_dereg_mr>;
using OwnedWindow = Owned<ibv_mw, ibv_dealloc_mw>;
using OwnedChannel = Owned<ibv_comp_channel, ibv_destroy_comp_channel>;
using OwnedQueue = Owned<ibv_cq, ibv_destroy_cq>;
using OwnedPair = Owned<ibv_qp, ibv_destroy_qp>;

struct DeviceList {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);  // Null where the kernel has no InfiniBand.
  ~DeviceList() {
    if (devices != nullptr) ibv_free_device_list(devices);
  }
};

uint32_t MtuBytes(ibv_mtu mtu) { return 128u << static_cast<unsigned>(mtu); }

ibv_mtu MtuOf(uint32_t bytes) {
  auto mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && MtuBytes(static_cast<ibv_mtu>(mtu + 1)) <= bytes) {
    mtu = static_cast<ibv_mtu>(mtu + 1);
  }
  return mtu;
}

GidKind KindOf(uint32_t type) {
  if (type == IBV_GID_TYPE_ROCE_V2) return GidKind::kRoceV2;
  return type == IBV_GID_TYPE_ROCE_V1 ? GidKind::kRoceV1 : GidKind::kInfiniBand;
}

// Windows of type 2, by which a key belongs to one queue pair.
bool HasWindows(const ibv_device_attr& device) {
  constexpr unsigned kTypes = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return (device.device_cap_flags & kTypes) != 0 && device.max_mw > 0;
}

// Every address of every port of one device, as a Port each; a port without one is told once.
void AddPorts(ibv_context* context, std::vector<Port>* ports) {
  ibv_device_attr device{};
  if (ibv_query_device(context, &device) != 0) return;
  std::vector<ibv_gid_entry> gids(kGidsMax);
  const ssize_t found = ibv_query_gid_table(context, gids.data(), gids.size(), 0);
  gids.resize(found > 0 ? static_cast<size_t>(found) : 0);
  for (uint8_t number = 1; number <= device.phys_port_cnt; ++number) {
    ibv_port_attr attributes{};
    if (ibv_query_port(context, number, &attributes) != 0) continue;
    Port port{.device = ibv_get_device_name(context->device),
              .number = number,
              .active = attributes.state == IBV_PORT_ACTIVE,
              .ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
              .lid = attributes.lid,
              .mtu_bytes = MtuBytes(attributes.active_mtu),
              .region_bytes_max = device.max_mr_size,
              .regions_max = static_cast<uint32_t>(device.max_mr),
              .queue_pairs_max = static_cast<uint32_t>(device.max_qp),
              .queue_depth_max = static_cast<uint32_t>(device.max_qp_wr),
              .completions_max = static_cast<uint32_t>(device.max_cqe),
              .windows = HasWindows(device)};
    bool any = false;
    for (const ibv_gid_entry& entry : gids) {
      if (entry.port_num != number) continue;
      any = true;
      port.gid_index = static_cast<int>(entry.gid_index);
      port.gid_kind = KindOf(entry.gid_type);
      std::memcpy(port.gid.data(), entry.gid.raw, port.gid.size());
      ports->push_back(port);
    }
    if (!any) ports->push_back(port);
  }
}

WorkError ErrorOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return WorkError::kNone;
    case IBV_WC_WR_FLUSH_ERR:
      return WorkError::kFlushed;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return WorkError::kPeerSilent;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return WorkError::kPeerRefused;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return WorkError::kNoReceive;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_MW_BIND_ERR:
      return WorkError::kLocal;
    default:
      return WorkError::kOther;
  }
}

ibv_sge PartOf(const std::byte* data, uint32_t bytes, uint32_t key) {
  return {.addr = reinterpret_cast<uint64_t>(data), .length = bytes, .lkey = key};
}

class LibMemory final : public Memory {
 public:
  explicit LibMemory(ibv_mr* region) : region_(region) {}
  uint32_t local_key() const override { return region_->lkey; }
  uint32_t remote_key() const override { return region_->rkey; }
  ibv_mr* get() const { return region_.get(); }

 private:
  OwnedRegion region_;
};

class LibWindow final : public Window {
 public:
  explicit LibWindow(ibv_mw* window) : window_(window), key_(window->rkey) {}
  uint32_t key() const override { return key_; }
  uint32_t NextKey() override { return key_ = ibv_inc_rkey(key_); }
  ibv_mw* get() const { return window_.get(); }

 private:
  OwnedWindow window_;
  uint32_t key_;
};

class LibCompletionQueue final : public CompletionQueue {
 public:
  LibCompletionQueue(ibv_comp_channel* channel, ibv_cq* queue) : channel_(channel), queue_(queue) {}
  ~LibCompletionQueue() override {
    if (unacknowledged_ > 0) ibv_ack_cq_events(queue_.get(), unacknowledged_);
  }

  absl::StatusOr<size_t> Poll(std::span<Completed> out) override {
    std::array<ibv_wc, kPostMax> found;
    const int asked = static_cast<int>(std::min(out.size(), found.size()));
    const int count = ibv_poll_cq(queue_.get(), asked, found.data());
    if (count < 0) return Internal("the completion queue overran or its device is gone");
    for (int i = 0; i < count; ++i) {
      const ibv_wc& from = found[static_cast<size_t>(i)];
      const bool good = from.status == IBV_WC_SUCCESS;
      out[static_cast<size_t>(i)] = {
          .id = from.wr_id,
          .queue_pair = from.qp_num,
          .error = ErrorOf(from.status),
          .told = good && from.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
          .bytes = good ? from.byte_len : 0,
          .immediate = good && (from.wc_flags & IBV_WC_WITH_IMM) != 0 ? ntohl(from.imm_data) : 0};
    }
    return static_cast<size_t>(count);
  }

  absl::Status Arm() override {
    const int error = ibv_req_notify_cq(queue_.get(), 0);
    return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_req_notify_cq");
  }
  int event_fd() const override { return channel_->fd; }
  void TakeEvents() override {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) {
      // Acknowledged in bulk: each time takes a lock.
      if (++unacknowledged_ < 1024) continue;
      ibv_ack_cq_events(queue_.get(), std::exchange(unacknowledged_, 0));
    }
  }

  ibv_cq* get() const { return queue_.get(); }

 private:
  OwnedChannel channel_;
  OwnedQueue queue_;
  unsigned unacknowledged_ = 0;
};

class LibQueuePair final : public QueuePair {
 public:
  LibQueuePair(ibv_qp* pair, const Port& port, uint32_t inline_bytes)
      : pair_(pair), port_(port), inline_bytes_(inline_bytes) {}

  uint32_t number() const override { return pair_->qp_num; }
  uint32_t inline_bytes() const override { return inline_bytes_; }

  absl::Status Init() {
    ibv_qp_attr to{};
    to.qp_state = IBV_QPS_INIT;
    to.port_num = port_.number;
    to.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    return Modify(&to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                  "INIT");
  }

  absl::Status Connect(const PeerAddress& peer, uint32_t first_packet) override {
    ibv_qp_attr ready{};
    ready.qp_state = IBV_QPS_RTR;
    ready.path_mtu = MtuOf(std::min(peer.mtu_bytes, port_.mtu_bytes));
    ready.dest_qp_num = peer.queue_pair;
    ready.rq_psn = peer.first_packet;
    ready.max_dest_rd_atomic = 1;
    ready.min_rnr_timer = kNoReceiveWait;
    ready.ah_attr.port_num = port_.number;
    ready.ah_attr.dlid = peer.lid;
    ready.ah_attr.is_global = 1;
    ready.ah_attr.grh.sgid_index = static_cast<uint8_t>(port_.gid_index);
    ready.ah_attr.grh.hop_limit = kHopsMax;
    std::memcpy(ready.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    RP_TRY(Modify(&ready,
                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                  "RTR"));
    ibv_qp_attr send{};
    send.qp_state = IBV_QPS_RTS;
    send.sq_psn = first_packet;
    send.timeout = kAckTimeout;
    send.retry_cnt = kRetries;
    send.rnr_retry = kRetries;
    send.max_rd_atomic = 1;
    return Modify(&send,
                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
                  "RTS");
  }

  absl::Status PostReceives(std::span<const ReceiveWork> work) override {
    std::array<ibv_recv_wr, kPostMax> requests;
    std::array<ibv_sge, kPostMax> parts;
    while (!work.empty()) {
      const size_t count = std::min(work.size(), requests.size());
      for (size_t i = 0; i < count; ++i) {
        parts[i] = PartOf(work[i].data, work[i].bytes, work[i].local_key);
        requests[i] = {.wr_id = work[i].id,
                       .next = i + 1 < count ? &requests[i + 1] : nullptr,
                       .sg_list = &parts[i],
                       .num_sge = 1};
      }
      ibv_recv_wr* bad = nullptr;
      if (const int error = ibv_post_recv(pair_.get(), requests.data(), &bad); error != 0) {
        return ErrnoStatus(error, "ibv_post_recv");
      }
      work = work.subspan(count);
    }
    return absl::OkStatus();
  }

  absl::Status PostSends(std::span<const SendWork> work) override {
    std::array<ibv_send_wr, kPostMax> requests;
    std::array<ibv_sge, kPostMax> parts;
    while (!work.empty()) {
      const size_t count = std::min(work.size(), requests.size());
      for (size_t i = 0; i < count; ++i) {
        Fill(work[i], &requests[i], &parts[i]);
        requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
      }
      ibv_send_wr* bad = nullptr;
      if (const int error = ibv_post_send(pair_.get(), requests.data(), &bad); error != 0) {
        return ErrnoStatus(error, "ibv_post_send");
      }
      // A window is found by the key that it was opened with before.
      for (const SendWork& one : work.first(count)) {
        if (one.kind != SendWork::Kind::kOpenWindow) continue;
        static_cast<LibWindow*>(one.window)->get()->rkey = one.remote_key;
      }
      work = work.subspan(count);
    }
    return absl::OkStatus();
  }

 private:
  static void Fill(const SendWork& from, ibv_send_wr* to, ibv_sge* part) {
    *to = {};
    to->wr_id = from.id;
    if (from.signaled) to->send_flags |= IBV_SEND_SIGNALED;
    if (from.inlined) to->send_flags |= IBV_SEND_INLINE;
    switch (from.kind) {
      case SendWork::Kind::kOpenWindow:
        to->opcode = IBV_WR_BIND_MW;
        to->bind_mw.mw = static_cast<LibWindow*>(from.window)->get();
        to->bind_mw.rkey = from.remote_key;
        to->bind_mw.bind_info = {.mr = static_cast<const LibMemory*>(from.memory)->get(),
                                 .addr = reinterpret_cast<uint64_t>(from.data),
                                 .length = from.bytes,
                                 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
        return;
      case SendWork::Kind::kCloseWindow:
        to->opcode = IBV_WR_LOCAL_INV;
        to->invalidate_rkey = from.remote_key;
        return;
      case SendWork::Kind::kSend:
        to->opcode = IBV_WR_SEND_WITH_IMM;
        break;
      case SendWork::Kind::kWrite:
        to->opcode = IBV_WR_RDMA_WRITE;
        break;
      case SendWork::Kind::kWriteTold:
        to->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        break;
    }
    to->imm_data = htonl(from.immediate);
    if (from.bytes > 0) {
      *part = PartOf(from.data, from.bytes, from.local_key);
      to->sg_list = part;
      to->num_sge = 1;
    }
    if (from.kind == SendWork::Kind::kSend) return;
    to->wr.rdma.remote_addr = from.remote_address;
    to->wr.rdma.rkey = from.remote_key;
  }

  absl::Status Modify(ibv_qp_attr* to, int mask, const char* state) {
    const int error = ibv_modify_qp(pair_.get(), to, mask);
    if (error == 0) return absl::OkStatus();
    return ErrnoStatus(error, "cannot move a queue pair of " + port_.device + " to " + state);
  }

  OwnedPair pair_;
  Port port_;
  uint32_t inline_bytes_;
};

class LibDevice final : public Device {
 public:
  LibDevice(const Port& port, ibv_context* context, ibv_pd* domain)
      : port_(port), context_(context), domain_(domain) {}

  const Port& port() const override { return port_; }

  absl::StatusOr<std::unique_ptr<Memory>> Register(Bytes memory, Access access) override {
    // Relaxed ordering is a wish: devices and systems that do not have it ignore it. A completion
    // is always written after the data that it tells of.
    unsigned flags = IBV_ACCESS_RELAXED_ORDERING;
    if (access != Access::kReadHere) flags |= IBV_ACCESS_LOCAL_WRITE;
    if (access == Access::kPeerWrites) flags |= IBV_ACCESS_REMOTE_WRITE;
    if (access == Access::kWindows) flags |= IBV_ACCESS_MW_BIND;
    ibv_mr* region = ibv_reg_mr(domain_.get(), memory.data(), memory.size(), flags);
    if (region != nullptr) return std::make_unique<LibMemory>(region);
    return ErrnoStatus(errno, "cannot register " + std::to_string(memory.size()) + " bytes with " +
                                  port_.device + " (the limit on locked memory is ulimit -l)");
  }

  absl::StatusOr<std::unique_ptr<Memory>> RegisterDmabuf(int fd, uint64_t offset, uint64_t bytes,
                                                         uint64_t address) override {
    ibv_mr* region = ibv_reg_dmabuf_mr(
        domain_.get(), offset, bytes, address, fd,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    if (region != nullptr) return std::make_unique<LibMemory>(region);
    if (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT || errno == EINVAL) {
      return FailedPrecondition(
          "the driver of " + port_.device +
          " does not take device memory (dma-buf); use host memory, or a driver "
          "that does, such as mlx5 on Linux 5.12 or newer");
    }
    return ErrnoStatus(errno, "cannot register device memory with " + port_.device);
  }

  absl::StatusOr<std::unique_ptr<Window>> MakeWindow() override {
    ibv_mw* window = ibv_alloc_mw(domain_.get(), IBV_MW_TYPE_2);
    if (window != nullptr) return std::make_unique<LibWindow>(window);
    return ErrnoStatus(errno, "cannot make a memory window on " + port_.device);
  }

  absl::StatusOr<std::unique_ptr<CompletionQueue>> MakeCompletionQueue(uint32_t entries) override {
    OwnedChannel channel(ibv_create_comp_channel(context_.get()));
    if (channel == nullptr) return ErrnoStatus(errno, "ibv_create_comp_channel on " + port_.device);
    const int flags = fcntl(channel->fd, F_GETFL);
    if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
      return ErrnoStatus(errno, "fcntl on a completion channel");
    }
    ibv_cq* queue =
        ibv_create_cq(context_.get(), static_cast<int>(entries), nullptr, channel.get(), 0);
    if (queue == nullptr) {
      return ErrnoStatus(errno, "cannot make a completion queue of " + std::to_string(entries) +
                                    " on " + port_.device);
    }
    return std::make_unique<LibCompletionQueue>(channel.release(), queue);
  }

  absl::StatusOr<std::unique_ptr<QueuePair>> MakeQueuePair(CompletionQueue* queue,
                                                           const QueuePairShape& shape) override {
    ibv_cq* completions = static_cast<LibCompletionQueue*>(queue)->get();
    ibv_qp_init_attr wanted{};
    wanted.send_cq = completions;
    wanted.recv_cq = completions;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = shape.sends,
                  .max_recv_wr = shape.receives,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = shape.inline_bytes};
    ibv_qp* pair = ibv_create_qp(domain_.get(), &wanted);
    if (pair == nullptr && shape.inline_bytes > 0) {  // Some devices refuse what they do not have.
      wanted.cap.max_inline_data = 0;
      pair = ibv_create_qp(domain_.get(), &wanted);
    }
    if (pair == nullptr) return ErrnoStatus(errno, "cannot make a queue pair on " + port_.device);
    const uint32_t inline_bytes = std::min(wanted.cap.max_inline_data, shape.inline_bytes);
    auto made = std::make_unique<LibQueuePair>(pair, port_, inline_bytes);
    RP_TRY(made->Init());
    return made;
  }

 private:
  Port port_;
  OwnedContext context_;
  OwnedDomain domain_;
};

class LibVerbs final : public Verbs {
 public:
  absl::StatusOr<std::vector<Port>> Ports() override {
    const DeviceList list;
    std::vector<Port> ports;
    for (int i = 0; i < list.count && list.devices != nullptr; ++i) {
      const OwnedContext context(ibv_open_device(list.devices[i]));
      if (context != nullptr) AddPorts(context.get(), &ports);
    }
    return ports;
  }

  absl::StatusOr<std::unique_ptr<Device>> Open(const Port& port) override {
    const DeviceList list;
    for (int i = 0; i < list.count && list.devices != nullptr; ++i) {
      if (port.device != ibv_get_device_name(list.devices[i])) continue;
      OwnedContext context(ibv_open_device(list.devices[i]));
      if (context == nullptr)
        return ErrnoStatus(errno, "cannot open the RDMA device " + port.device);
      OwnedDomain domain(ibv_alloc_pd(context.get()));
      if (domain == nullptr) return ErrnoStatus(errno, "ibv_alloc_pd on " + port.device);
      return std::make_unique<LibDevice>(port, context.release(), domain.release());
    }
    return NotFound("the RDMA device " + port.device + " is gone");
  }
};

}  // namespace

std::unique_ptr<Verbs> MakeLibVerbs() { return std::make_unique<LibVerbs>(); }

}  // namespace reprise::rdma
