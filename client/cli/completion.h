#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace reprise::cli {

// Scripts that complete verbs, nested verbs and options of a command tree.
std::string BashCompletion(const CLI::App& root);
std::string ZshCompletion(const CLI::App& root);
std::string FishCompletion(const CLI::App& root);

}  // namespace reprise::cli
