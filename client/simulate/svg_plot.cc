#include "client/simulate/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "client/simulate/html.h"

namespace reprise {
namespace {

constexpr double kWidth = 760, kHeight = 300;
constexpr double kLeft = 64, kRight = 36, kTop = 14, kBottom = 46;
constexpr double kLegendStep = 150;

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string Line(double x1, double y1, double x2, double y2, const std::string& css) {
  return "<line class=\"" + css + "\" x1=\"" + Number(x1) + "\" y1=\"" + Number(y1) + "\" x2=\"" +
         Number(x2) + "\" y2=\"" + Number(y2) + "\"/>";
}

std::string Text(double x, double y, const std::string& anchor, const std::string& text,
                 const std::string& more = "") {
  return "<text x=\"" + Number(x) + "\" y=\"" + Number(y) + "\" text-anchor=\"" + anchor + "\"" +
         more + ">" + EscapeHtml(text) + "</text>";
}

std::string Rect(double x, double y, double width, double height, const std::string& css,
                 const std::string& title = "") {
  return "<rect class=\"" + css + "\" x=\"" + Number(x) + "\" y=\"" + Number(y) + "\" width=\"" +
         Number(std::max(width, 0.0)) + "\" height=\"" + Number(std::max(height, 0.0)) + "\">" +
         (title.empty() ? "" : "<title>" + EscapeHtml(title) + "</title>") + "</rect>";
}

std::string Begin(const std::string& title, double height) {
  return "<svg viewBox=\"0 0 " + Number(kWidth) + " " + Number(height) +
         "\" role=\"img\" aria-label=\"" + EscapeHtml(title) + "\">";
}

// 1, 2 or 5 times a power of ten, so that about five fit.
double StepFor(double range) {
  const double raw = range / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

// Names and colours of series, in rows below the plot.
class Legend {
 public:
  std::string Entry(const std::string& name, const std::string& css, bool line) {
    const double x = kLeft + column_ * kLegendStep;
    const double y = kHeight + 14 + row_ * 18;
    if (++column_ == 4) {
      column_ = 0;
      ++row_;
    }
    return (line ? Line(x, y - 4, x + 22, y - 4, "line " + css)
                 : Rect(x, y - 10, 14, 10, "bar " + css)) +
           Text(x + 28, y, "start", name);
  }
  double height() const { return kHeight + 8 + 18 * (column_ == 0 ? row_ : row_ + 1); }

 private:
  int column_ = 0, row_ = 0;
};

struct Frame {
  double x_min = 0, x_max = 1, y_max = 1;
  bool log_x = false;

  double X(double value) const {
    const double share = log_x ? std::log(std::max(value, x_min) / x_min) / std::log(x_max / x_min)
                               : (value - x_min) / (x_max - x_min);
    return kLeft + std::clamp(share, 0.0, 1.0) * (kWidth - kLeft - kRight);
  }
  double Y(double value) const {
    return kHeight - kBottom - std::min(value / y_max, 1.05) * (kHeight - kTop - kBottom);
  }

  std::string Axes(const std::string& x_label, const std::string& y_label,
                   const std::function<std::string(double)>& x_text,
                   const std::function<std::string(double)>& y_text) const {
    std::string svg;
    const double y_step = StepFor(y_max);
    for (double y = 0; y <= y_max * 1.0001; y += y_step) {
      svg += Line(kLeft, Y(y), kWidth - kRight, Y(y), "grid");
      svg += Text(kLeft - 6, Y(y) + 4, "end", y_text(y));
    }
    for (const double x : XTicks()) {
      svg += Line(X(x), kHeight - kBottom, X(x), kHeight - kBottom + 4, "axis");
      svg += Text(X(x), kHeight - kBottom + 17, "middle", x_text(x));
    }
    svg += Line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "axis");
    svg += Text((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", x_label);
    svg += Text(14, (kTop + kHeight - kBottom) / 2, "middle", y_label,
                " transform=\"rotate(-90 14 " + Number((kTop + kHeight - kBottom) / 2) + ")\"");
    return svg;
  }

 private:
  std::vector<double> XTicks() const {
    std::vector<double> ticks;
    if (!log_x) {
      const double step = StepFor(x_max - x_min);
      for (double x = std::ceil(x_min / step) * step; x <= x_max * 1.0001; x += step) {
        ticks.push_back(x);
      }
      return ticks;
    }
    // Powers of two, so many apart that about eight fit.
    const double octaves = std::log2(x_max / x_min);
    const double apart = std::max(1.0, std::ceil(octaves / 8));
    for (double power = std::ceil(std::log2(x_min)); power <= std::log2(x_max) + 1e-9;
         power += apart) {
      ticks.push_back(std::exp2(power));
    }
    return ticks;
  }
};

}  // namespace

std::string Plot::Svg() const {
  Frame frame{.log_x = log_x};
  double x_min = 1e300, x_max = -1e300, y = 0;
  for (const PlotSeries& one : series) {
    for (const auto& [px, py] : one.points) {
      x_min = std::min(x_min, px);
      x_max = std::max(x_max, px);
      y = std::max(y, py);
    }
  }
  for (const PlotMarker& marker : markers) {
    x_min = std::min(x_min, marker.x);
    x_max = std::max(x_max, marker.x);
  }
  if (x_min > x_max) x_min = 1, x_max = 2;
  if (log_x) x_min = std::max(x_min, 1e-9);
  if (x_max <= x_min) x_max = x_min * 2 + 1;
  frame.x_min = x_min;
  frame.x_max = x_max;
  frame.y_max = y_max > 0 ? y_max : std::max(y, 1e-9) * 1.05;

  Legend legend;
  std::string body;
  if (shade_from > 0 && shade_from < x_max) {
    body += Rect(frame.X(shade_from), kTop, kWidth - kRight - frame.X(shade_from),
                 kHeight - kTop - kBottom, "shade");
  }
  body += frame.Axes(x_label, y_label, x_text, y_text);
  for (const PlotSeries& one : series) {
    if (one.points.empty()) continue;
    body += legend.Entry(one.name, one.css, true);
    if (one.dots) {
      for (const auto& [px, py] : one.points) {
        body += "<circle class=\"dot " + one.css + "\" r=\"3.5\" cx=\"" + Number(frame.X(px)) +
                "\" cy=\"" + Number(frame.Y(py)) + "\"><title>" +
                EscapeHtml(x_text(px) + ": " + y_text(py)) + "</title></circle>";
      }
      continue;
    }
    std::string path;
    double last = 0;
    for (const auto& [px, py] : one.points) {
      const std::string at = Number(frame.X(px)) + " " + Number(frame.Y(py));
      if (path.empty()) {
        path = "M" + at;
      } else {
        if (one.steps) path += "L" + Number(frame.X(px)) + " " + Number(frame.Y(last));
        path += "L" + at;
      }
      last = py;
    }
    body += "<path class=\"line " + one.css + "\" d=\"" + path + "\"/>";
  }
  double label_y = kTop + 10;
  for (const PlotMarker& marker : markers) {
    const double x = frame.X(marker.x);
    const bool left = x > kWidth * 0.7;
    body += Line(x, kTop, x, kHeight - kBottom, "marker");
    body += Text(left ? x - 5 : x + 5, label_y, left ? "end" : "start", marker.label);
    label_y += 14;
  }
  return Begin(title, legend.height()) + body + "</svg>";
}

std::string StackedPlot::Svg() const {
  Frame frame;
  double most = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    double sum = 0;
    for (const Layer& layer : layers) sum += layer.values[k];
    most = std::max(most, sum);
  }
  const double width = x.size() > 1 ? x[1] - x[0] : 1;
  frame.x_min = x.empty() ? 0 : x.front();
  frame.x_max = (x.empty() ? 0 : x.back()) + std::max(width, 1e-9);
  frame.y_max = std::max(most, 1e-9) * 1.05;
  std::string body = frame.Axes(x_label, y_label, x_text, y_text);
  Legend legend;
  std::vector<double> base(x.size());
  for (const Layer& layer : layers) {
    body += legend.Entry(layer.name, layer.css, false);
    for (size_t k = 0; k < x.size(); ++k) {
      if (layer.values[k] <= 0) continue;
      const double bottom = frame.Y(base[k]), top = frame.Y(base[k] + layer.values[k]);
      base[k] += layer.values[k];
      body += Rect(frame.X(x[k]), top, frame.X(x[k] + width) - frame.X(x[k]) - 0.6, bottom - top,
                   "bar " + layer.css, layer.name + ": " + y_text(layer.values[k]));
    }
  }
  return Begin(title, legend.height()) + body + "</svg>";
}

std::string ShareBar::Svg() const {
  constexpr double kBarHeight = 42, kBarTop = 6;
  double whole = 0;
  for (const Part& part : parts) whole += part.value;
  std::string body;
  double x = kLeft, column = 0, row = 0;
  for (const Part& part : parts) {
    const double width = whole == 0 ? 0 : part.value / whole * (kWidth - kLeft - kRight);
    char share[32];
    std::snprintf(share, sizeof(share), "%.2f %%", whole == 0 ? 0 : 100 * part.value / whole);
    const std::string label = part.name + " " + share;
    body += Rect(x, kBarTop, width, kBarHeight, "bar " + part.css, label);
    x += width;
    const double entry_x = kLeft + column * 230, entry_y = kBarTop + kBarHeight + 22 + row * 18;
    body += Rect(entry_x, entry_y - 10, 14, 10, "bar " + part.css);
    body += Text(entry_x + 20, entry_y, "start", label);
    if (++column == 3) {
      column = 0;
      ++row;
    }
  }
  return Begin(title, kBarTop + kBarHeight + 32 + 18 * (column == 0 ? row - 1 : row)) + body +
         "</svg>";
}

}  // namespace reprise
