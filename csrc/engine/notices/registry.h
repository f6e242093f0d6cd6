// What this process keeps about MPI communicators: the duplicates on which gradred's own messages
// travel, which all communicators over one group share, and the memory that communicators share.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/notices/closing.h"
#include "mpi/mpi.h"
#include "node/memory/pool.h"

namespace gradred {

// A communicator that gradred made for itself. Registry::reap() closes it after the last user has
// released it.
struct Duplicate {
  mpi::Handle comm = 0;
  std::shared_ptr<NoticeCount> notices = std::make_shared<NoticeCount>();
  std::vector<int> group;    // ranks in MPI_COMM_WORLD; empty: cannot be shared
  std::uint64_t serial = 0;  // the same on all ranks of the group

  ~Duplicate();
};

// What the messages of a communicator use (tag_range.h).
struct TagRange {
  std::shared_ptr<Duplicate> duplicate;
  int id = 0;              // number among the communicators on this duplicate
  bool keeps_id = false;   // the number must be given back
  std::vector<int> group;  // as in the duplicate

  ~TagRange();
};

class Registry {
 public:
  static Registry& get();

  // What tag_range.h agrees on. duplicates_over(): the duplicates over this group that this process
  // has; none for an empty group.
  std::vector<std::shared_ptr<Duplicate>> duplicates_over(const std::vector<int>& group);
  std::uint64_t new_serial();
  // `comm`: a duplicate that the ranks have just made.
  std::shared_ptr<Duplicate> add_duplicate(mpi::Handle comm, std::vector<int> group,
                                           std::uint64_t serial);
  // Numbers of communicators over one group, 64 in each window. A number is free again when no rank
  // of the group uses it any more.
  std::uint64_t number_windows();
  std::uint64_t first_window(const std::vector<int>& group);  // with a free number
  // Returns one bit for each number.
  std::uint64_t free_numbers(const std::vector<int>& group, std::uint64_t window);
  // Reserves a few free numbers, and returns their bits.
  std::uint64_t reserve_numbers(const std::vector<int>& group, std::uint64_t window);
  void keep_id(const std::vector<int>& group, int id);
  void give_back_id(const std::vector<int>& group, int id);
  // Continues to free what has no user any more; never blocks. Must not be called inside an MPI
  // callback.
  void reap();

  // Counts of the operations that the MPI carries out, over all communicators of a group. All ranks
  // of the group make the same number, so a rank that has left with fewer is found missing.
  std::uint64_t group_key(mpi::Handle comm);
  std::uint64_t count_on_mpi(std::uint64_t group);  // counts one more
  std::map<std::uint64_t, std::uint64_t> counts_on_mpi();

  // Memory that this process shares, for groups over some of the ranks that share it; the last used
  // first. reap() releases pools that no group has used for a while.
  void add_pool(const std::shared_ptr<Pool>& pool);
  std::vector<std::shared_ptr<Pool>> pools_over(std::span<const int> world_ranks);

 private:
  friend struct Duplicate;
  friend struct TagRange;

  // Numbers that this process uses for one group: a bit for each, a word for each window.
  struct Numbers {
    std::vector<std::uint64_t> words;
    std::size_t used = 0;

    std::uint64_t in(std::uint64_t window) const {
      return window < words.size() ? words[window] : 0;
    }
    void take(int id);
    void give_back(int id);
  };

  void trim_pools();

  std::mutex mutex_;
  std::list<std::weak_ptr<Duplicate>> duplicates_;
  // The newest ones, kept though nothing may use them: programs make and free communicators of one
  // group in turn.
  std::list<std::shared_ptr<Duplicate>> kept_;
  std::list<Closing> to_close_;
  std::map<std::vector<int>, Numbers> ids_;  // by group
  std::uint64_t next_serial_ = 1;
  std::map<std::uint64_t, std::uint64_t> on_mpi_;  // operations, by group
  std::list<std::shared_ptr<Pool>> pools_;         // most recently used first
  std::mutex closing_mutex_;
  std::list<Closing> closing_;
};

}  // namespace gradred
