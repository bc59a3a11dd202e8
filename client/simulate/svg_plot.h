#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace reprise {

// Plots as inline SVG that needs no script: colours come from the page's style sheet by class
// (c0 .. c7 for series, "dash" for a dashed line), so that they follow dark mode and print.
struct PlotSeries {
  std::string name;
  std::string css;  // "c0", "c1 dash".
  std::vector<std::pair<double, double>> points;
  bool steps = false;  // Holds until the next point.
  bool dots = false;   // Points alone.
};

struct PlotMarker {  // A vertical line.
  double x = 0;
  std::string label;
};

struct Plot {
  std::string title;  // For readers that do not see it.
  std::string x_label, y_label;
  bool log_x = false;
  double y_max = 0;  // 0: what the points need.
  std::function<std::string(double)> x_text, y_text;
  std::vector<PlotSeries> series;
  std::vector<PlotMarker> markers;
  double shade_from = 0;  // Right of here nothing can be seen (0: no shade).

  std::string Svg() const;
};

// Bars that add up, one for each moment: layers[i][k] is of bar k.
struct StackedPlot {
  std::string title;
  std::string x_label, y_label;
  std::function<std::string(double)> x_text, y_text;
  std::vector<double> x;  // Where each bar begins.
  struct Layer {
    std::string name, css;
    std::vector<double> values;
  };
  std::vector<Layer> layers;

  std::string Svg() const;
};

// One horizontal bar of parts that make a whole.
struct ShareBar {
  struct Part {
    std::string name, css;
    double value = 0;
  };
  std::string title;
  std::vector<Part> parts;

  std::string Svg() const;
};

}  // namespace reprise
