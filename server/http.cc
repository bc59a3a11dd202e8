#include "server/http.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace reprise::server {
namespace {

constexpr uint32_t kTraceSecondsMax = 7 * 86'400;
constexpr Nanos kTraceWait = kSecond;
constexpr size_t kRequestBodyBytesMax = 4096;
constexpr size_t kRequestsPerConnectionMax = 1000;

// Threads that serve connections. Full queues hold the accepting thread, so that the number of
// accepted connections is bounded and the rest wait in the kernel's backlog.
class BoundedWorkers final : public httplib::TaskQueue {
 public:
  BoundedWorkers(uint32_t threads, uint32_t waiting_max) : waiting_max_(waiting_max) {
    for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }

  void enqueue(std::function<void()> job) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.size() < waiting_max_ || stopping_; });
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  // Until stopped; then what is queued is still run, so that its sockets are closed.
  void Work() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !jobs_.empty() || stopping_; });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        changed_.notify_all();
      }
      job();
    }
  }

  const size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

// A JSON string of text that our own code wrote or a peer sent.
std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c < 0x20 || c >= 0x7f) {
      out += '?';
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

void Answer(httplib::Response& response, int status, const std::string& json) {
  response.status = status;
  response.set_content(json + "\n", "application/json");
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const Options& options, HttpSource* source,
       const std::function<void(httplib::Server*)>& add_routes)
      : source_(source) {
    server_.new_task_queue = [options] {
      return new BoundedWorkers(options.threads,
                                options.waiting_max);  // Owned by the caller: httplib.
    };
    const auto timeout = std::chrono::milliseconds(options.timeout_ms);
    server_.set_read_timeout(timeout);
    server_.set_write_timeout(timeout);
    server_.set_keep_alive_timeout((options.timeout_ms + 999) / 1000);
    server_.set_keep_alive_max_count(kRequestsPerConnectionMax);
    server_.set_payload_max_length(kRequestBodyBytesMax);
    server_.set_tcp_nodelay(true);
    // Not the library's default, SO_REUSEPORT: a second daemon must not share the port in silence.
    server_.set_socket_options([this](int socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      socket_ = socket;
    });
    if (add_routes) add_routes(&server_);
    AddRoutes();
  }

  ~Impl() {
    if (!thread_.joinable()) return;
    stopping_ = true;
    // stop() is lost when it comes before the listening thread is in its loop.
    while (!server_.is_running() && !ended_) std::this_thread::yield();
    server_.stop();
    thread_.join();
  }

  absl::Status Listen(const Options& options) {
    const int port = options.port == 0 ? server_.bind_to_any_port(options.host)
                     : server_.bind_to_port(options.host, options.port) ? options.port
                                                                        : -1;
    if (port <= 0) {
      return Unavailable("cannot listen on http " + options.host + ":" +
                         std::to_string(options.port) + " (" + std::strerror(errno) +
                         "); stop what uses the port, or set listen.http to another address");
    }
    port_ = static_cast<uint16_t>(port);
    // The library's backlog of 5 makes the kernel drop connections of a burst.
    ::listen(socket_, SOMAXCONN);
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    return absl::OkStatus();
  }

  uint16_t port() const { return port_; }

 private:
  void AddRoutes() {
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(source_->Metrics(), "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      Answer(response, 200, R"({"status":"alive"})");
    });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      std::string reason;
      if (source_->Ready(&reason)) return Answer(response, 200, R"({"status":"ready"})");
      Answer(response, 503, R"({"status":"not ready","reason":)" + JsonString(reason) + "}");
    });
    server_.Get("/status", [this](const httplib::Request&, httplib::Response& response) {
      Answer(response, 200, source_->StatusJson());
    });
    server_.Get("/trace", [this](const httplib::Request& request, httplib::Response& response) {
      StreamTrace(request, response);
    });
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;  // An answer of ours, such as 503 of /readyz.
      Answer(response, response.status,
             R"({"error":)" + JsonString("no " + request.method + " " + request.path) +
                 R"(,"try":["/metrics","/healthz","/readyz","/status","/trace"]})");
    });
  }

  // Rows until the time is over, the client is gone or the daemon stops. Blank lines in between
  // show that the connection lives.
  void StreamTrace(const httplib::Request& request, httplib::Response& response) {
    const std::string text = request.get_param_value("seconds");
    uint32_t seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    if (!whole || seconds == 0 || seconds > kTraceSecondsMax) {
      return Answer(response, 400, R"({"error":"?seconds=N says how long, up to a week"})");
    }
    TraceTap* tap = source_->trace();
    if (tap == nullptr || !tap->Begin(clock_.Now())) {
      return Answer(response, 409, R"({"error":"somebody records already; one at a time"})");
    }
    const Instant until = clock_.Now() + seconds * kSecond;
    response.set_chunked_content_provider(
        "application/x-ndjson",
        [this, tap, until](size_t, httplib::DataSink& sink) {
          std::string rows = tap->Take(kTraceWait);
          if (rows.empty()) rows = "\n";
          if (!sink.write(rows.data(), rows.size())) return false;
          if (clock_.Now() >= until || stopping_) sink.done();
          return true;
        },
        [tap](bool) { tap->End(); });
  }

  const SystemClock clock_;
  HttpSource* source_;
  httplib::Server server_;
  std::thread thread_;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> stopping_ = false;
  uint16_t port_ = 0;
  int socket_ = -1;  // The library's.
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Options& options, HttpSource* source,
    const std::function<void(httplib::Server*)>& add_routes) {
  auto impl = std::make_unique<Impl>(options, source, add_routes);
  RP_TRY(impl->Listen(options));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace reprise::server
