#pragma once

#include <memory>
#include <string>

#include "gpu/backends/make_engine.h"

namespace reprise::engine::test {

// The CPU engine as if its memory were a GPU's: segments must lie in an arena of its own, which
// cannot be read or written but by the engine's calls and by copies. Whoever looks into it from
// outside crashes; whoever lends other memory stops the process. Copies of slots are done only when
// they were asked for a few times, and what they load into is rubbish until then.
std::unique_ptr<Engine> MakeArenaEngine(std::unique_ptr<Engine> inner, uint64_t arena_bytes);

// Of MakeEngine's CPU engine, whatever device is named.
EngineMaker ArenaEngineMaker(uint64_t arena_bytes);

}  // namespace reprise::engine::test
