#include "client/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "protocol/base/units.h"

namespace reprise::cli {
namespace {

constexpr Nanos kDrawEvery = 100 * kMillisecond;
constexpr uint32_t kBarCells = 24;

uint32_t TerminalWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string Quantity(uint64_t value, Progress::Unit unit) {
  return unit == Progress::Unit::kBytes ? FormatBytes(value) : std::to_string(value);
}

}  // namespace

Progress::Progress(std::string what, uint64_t total, Unit unit, const Clock& clock)
    : what_(std::move(what)),
      total_(total),
      unit_(unit),
      clock_(clock),
      start_(clock.Now()),
      next_draw_(start_ + kDrawEvery),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::Update(uint64_t done) {
  if (!terminal_) return;
  const Instant now = clock_.Now();
  if (now < next_draw_) return;
  next_draw_ = now + kDrawEvery;
  const std::string line = Line(what_, done, total_, unit_, now - start_, TerminalWidth());
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
  std::fflush(stderr);
}

std::string Progress::Line(const std::string& what, uint64_t done, uint64_t total, Unit unit,
                           Nanos elapsed_ns, uint32_t width) {
  const double seconds = static_cast<double>(elapsed_ns) / static_cast<double>(kSecond);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string line = what + " ";
  if (total > 0) {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const auto cells = static_cast<uint32_t>(share * kBarCells);
    line += "[" + std::string(cells, '#') + std::string(kBarCells - cells, '.') + "] " +
            std::to_string(static_cast<int>(share * 100)) + "% ";
  }
  line += Quantity(done, unit);
  if (total > 0) line += " of " + Quantity(total, unit);
  line += ", " + Quantity(static_cast<uint64_t>(rate), unit) + "/s";
  if (total > done && rate > 0) {
    const double left_ns = static_cast<double>(total - done) / rate * static_cast<double>(kSecond);
    line += ", " + FormatDuration(static_cast<Nanos>(std::min(left_ns, 1e18))) + " left";
  }
  return line.substr(0, width);
}

}  // namespace reprise::cli
