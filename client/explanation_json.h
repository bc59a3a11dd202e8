#pragma once

#include <string>

#include "client/client.h"

namespace reprise {

// The object that `reprise explain --json` prints.
std::string ExplanationJson(const Client::Explanation& explanation, const Hash256& name_space);

}  // namespace reprise
