#pragma once

#include <string>

#include "client/simulate/study.h"

namespace reprise {

// The sections of the page: each one sentence that states a result, a plot, its numbers, and how
// they were computed, as HTML.
class StudySections {
 public:
  // All of them live as long as this.
  StudySections(const Study& study, const economics::ReuseStudy& reuse,
                const WindowEconomics& windows, const Costs& costs);

  std::string Capacity() const;
  std::string Waterfall() const;
  std::string Reuse() const;
  std::string Windows() const;  // Empty where the model has none.
  std::string FirstToken() const;
  std::string MoneyAgainstSize() const;
  std::string Sensitivity() const;
  std::string Wear() const;
  std::string OverTime() const;
  std::string Sessions() const;  // Empty where the trace names none.
  std::string Sweep() const;     // Empty where there was none.

 private:
  static std::string SpeedText(double rate);
  // The net saving under another profile; what hits is the same.
  double NetUnder(const CostProfile& profile) const;
  double ShareWithin(double seconds) const;

  const Study& study_;
  const economics::ReuseStudy& reuse_;
  const WindowEconomics& windows_;
  const Costs& costs_;
  const SimulationFigures& f_;
  const Money& money_;
  const SimulationSettings& settings_;
  double days_;
};

}  // namespace reprise
