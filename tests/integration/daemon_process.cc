#include "tests/integration/daemon_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace reprise::test {
namespace {

const std::string kReprised = RP_BINARY_DIR "/bin/reprised";
const std::string kReprise = RP_BINARY_DIR "/bin/reprise";

std::string DefaultProgram() {
  const char* named = std::getenv("RP_DAEMON");
  return named != nullptr ? named : "reprised";
}

// What follows `name`= in the line that says "ready", up to a space or a quote.
std::string ReadyField(const std::string& log, const std::string& name) {
  const size_t line = log.find(" ready ");
  size_t begin = line == std::string::npos ? line : log.find(" " + name + "=", line);
  if (begin == std::string::npos) return "";
  begin += name.size() + 2;
  const bool quoted = log[begin] == '"';
  if (quoted) ++begin;
  return log.substr(begin, log.find_first_of(quoted ? "\"" : " \n", begin) - begin);
}

}  // namespace

std::string DaemonConfig::ToToml(const std::string& data_dir) const {
  std::string text = "data_dir = \"" + data_dir + "\"\nmodel = \"" + model +
                     "\"\npayload_bytes = \"" + payload_bytes +
                     "\"\nshards = " + std::to_string(shards) + "\n";
  text += "[listen]\nunix = \"" + unix_path + "\"\ntcp = \"" + (tcp ? tcp_host + ":0" : "") +
          "\"\nhttp = \"" + http + "\"\nconnections_max = " + std::to_string(connections_max) +
          "\n";
  text += "[dram]\nbytes = \"" + dram_bytes + "\"\neviction = \"" + dram_eviction + "\"\n";
  text += "[ssd]\nbytes = \"" + ssd_bytes + "\"\nregion_bytes = \"" + region_bytes +
          "\"\nadmission = \"" + ssd_admission + "\"\nwrite = \"" + ssd_write + "\"\n";
  text += "[window]\nbytes = \"" + window_bytes + "\"\nttl = \"" + window_ttl + "\"\n";
  text += "[limits]\nstaging_slots_per_connection = " + std::to_string(staging_slots) +
          "\nidle_frame_timeout = \"" + idle_frame_timeout + "\"\n[quota]\n";
  for (const auto& [tenant, bytes] : quota) text += "\"" + tenant + "\" = \"" + bytes + "\"\n";
  if (!engine.empty()) text += "[engine]\nmodel = \"" + engine + "\"\nmemory = \"64MiB\"\n" + more;
  return text;
}

DaemonProcess::DaemonProcess(const std::string& program, const std::string& config_path,
                             std::string log_path, uint64_t descriptors_max)
    : log_path_(std::move(log_path)) {
  std::filesystem::remove(log_path_);
  pid_ = StartProgram({.arguments = {RP_BINARY_DIR "/bin/" + program, "--config", config_path},
                       .out_path = log_path_,
                       .err_path = log_path_,
                       .descriptors_max = descriptors_max});
}

DaemonProcess::~DaemonProcess() {
  if (!running()) return;
  Signal(SIGKILL);
  Wait();
}

bool DaemonProcess::WaitUntilReady() {
  const bool said = Eventually([this] { return !running() || !ReadyField(log(), "http").empty(); });
  return said && running();
}

void DaemonProcess::Signal(int signal) const {
  if (pid_ > 0 && !exit_code_.has_value()) kill(pid_, signal);
}

std::optional<int> DaemonProcess::Wait(Nanos timeout_ns) {
  if (!exit_code_.has_value()) exit_code_ = WaitForExit(pid_, timeout_ns);
  return exit_code_;
}

std::string DaemonProcess::tcp_address() const {
  const std::string listening = ReadyField(log(), "listening");
  return listening.substr(listening.rfind(' ') + 1);
}

uint16_t DaemonProcess::http_port() const {
  return static_cast<uint16_t>(std::atoi(ReadyField(log(), "http").c_str()));
}

void DaemonTest::SetUp() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  directory_ = std::string(RP_BINARY_DIR "/it/") + test->test_suite_name() + "." + test->name();
  if (DefaultProgram() != "reprised") directory_ += "+";  // Sockets have short names.
  std::filesystem::remove_all(directory_);
  std::filesystem::create_directories(directory_);
  setenv("TSAN_OPTIONS", "suppressions=" RP_SOURCE_DIR "/tests/integration/tsan.supp", 0);
}

void DaemonTest::TearDown() {
  EndDaemon();
  std::error_code ignored;
  if (!HasFailure()) std::filesystem::remove_all(directory_, ignored);
}

void DaemonTest::EndDaemon() {
  if (daemon_ != nullptr && daemon_->running()) Stop();
  daemon_.reset();
}

bool DaemonTest::Start(const DaemonConfig& config, uint64_t descriptors_max) {
  daemon_.reset();
  WriteText(config_path(), config.ToToml(data_dir()));
  daemon_ =
      std::make_unique<DaemonProcess>(config.program.empty() ? DefaultProgram() : config.program,
                                      config_path(), directory_ + "/log", descriptors_max);
  if (daemon_->WaitUntilReady()) return true;
  ADD_FAILURE() << "the daemon is not ready:\n" << daemon_->log();
  return false;
}

std::string DaemonTest::StartRefused(const DaemonConfig& config) {
  const std::string path = directory_ + "/refused.toml";
  WriteText(path, config.ToToml(data_dir()));
  const ProgramResult result = RunReprised({"--config", path});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  return result.err;
}

void DaemonTest::Stop() {
  daemon_->Signal(SIGTERM);
  const std::optional<int> exit_code = daemon_->Wait();
  EXPECT_EQ(exit_code.value_or(-1), 0) << daemon_->log();
  ExpectCleanLog();
}

void DaemonTest::Kill() {
  ASSERT_TRUE(daemon_->running()) << daemon_->log();
  daemon_->Signal(SIGKILL);
  EXPECT_EQ(daemon_->Wait().value_or(-1), 128 + SIGKILL);
  ExpectCleanLog();
}

void DaemonTest::ExpectCleanLog() {
  const std::string log = daemon_->log();
  for (const char* word :
       {"Sanitizer", "runtime error:", "check failed", "Check failed", "RP_CHECK"}) {
    EXPECT_EQ(log.find(word), std::string::npos) << log;
  }
}

std::unique_ptr<Client> DaemonTest::ConnectTo(const std::string& address) {
  auto client = Client::Connect({.address = address,
                                 .name = "integration",
                                 .deadline_ns = 30 * kSecond,
                                 .connect_timeout_ns = 30 * kSecond});
  if (client.ok()) return *std::move(client);
  ADD_FAILURE() << address << ": " << Message(client.status());
  return nullptr;
}

Json DaemonTest::Status() {
  const auto client = Connect();
  if (client == nullptr) return Json::object();
  const auto text = client->StatusJson();
  EXPECT_TRUE(text.ok()) << Message(text.status());
  return text.ok() ? Json::parse(*text, nullptr, false) : Json::object();
}

ProgramResult DaemonTest::RunReprised(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), kReprised);
  return RunProgram(std::move(arguments), directory_ + "/reprised");
}

ProgramResult DaemonTest::RunReprise(std::vector<std::string> arguments, std::string address,
                                     const std::string& scratch) const {
  if (address.empty()) address = this->address();
  arguments.insert(arguments.begin(), {kReprise, "--address", address});
  return RunProgram(std::move(arguments), directory_ + "/" + scratch);
}

std::string HttpGet(uint16_t port, const std::string& path) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval timeout{.tv_sec = kPatience / kSecond, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char piece[4096];
    for (ssize_t got; (got = recv(fd, piece, sizeof(piece), 0)) > 0;) {
      answer.append(piece, static_cast<size_t>(got));
    }
  }
  close(fd);
  return answer;
}

}  // namespace reprise::test
