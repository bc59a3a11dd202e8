#pragma once

#include <cstdint>
#include <vector>

namespace reprise::storage {

inline constexpr uint32_t kNoId = UINT32_MAX;

struct IdLinks {
  uint32_t older = kNoId;
  uint32_t newer = kNoId;
};

// A doubly linked list of small dense ids, oldest first. The links lie in a table of the owner's,
// indexed by id and shared by several lists, so no call allocates. An id is in at most one list of
// a table; which one, the owner knows.
class IdList {
 public:
  explicit IdList(std::vector<IdLinks>* links) : links_(links) {}

  bool empty() const { return oldest_ == kNoId; }
  // kNoId when empty.
  uint32_t oldest() const { return oldest_; }
  // The next newer id, kNoId after the newest. REQUIRES: `id` is in this list.
  uint32_t NewerThan(uint32_t id) const { return (*links_)[id].newer; }

  // REQUIRES: `id` is in no list of this table.
  void AddNewest(uint32_t id) {
    (*links_)[id] = {.older = newest_, .newer = kNoId};
    (newest_ == kNoId ? oldest_ : (*links_)[newest_].newer) = id;
    newest_ = id;
  }
  void AddOldest(uint32_t id) {
    (*links_)[id] = {.older = kNoId, .newer = oldest_};
    (oldest_ == kNoId ? newest_ : (*links_)[oldest_].older) = id;
    oldest_ = id;
  }
  // REQUIRES: `id` is in no list of this table, `newer` is in this one.
  void AddOlderThan(uint32_t newer, uint32_t id) {
    const uint32_t older = (*links_)[newer].older;
    (*links_)[id] = {.older = older, .newer = newer};
    (*links_)[newer].older = id;
    (older == kNoId ? oldest_ : (*links_)[older].newer) = id;
  }
  // REQUIRES: `id` is in this list.
  void Remove(uint32_t id) {
    const IdLinks links = (*links_)[id];
    (links.older == kNoId ? oldest_ : (*links_)[links.older].newer) = links.newer;
    (links.newer == kNoId ? newest_ : (*links_)[links.newer].older) = links.older;
  }

 private:
  std::vector<IdLinks>* links_;
  uint32_t oldest_ = kNoId;
  uint32_t newest_ = kNoId;
};

}  // namespace reprise::storage
