// How a communicator of gradred's own ends.
//
// A notice may come too late for its operation, and then nobody receives it (operation_log.h). MPI
// gives what identifies a freed communicator to one made later, and with it the messages that are
// still unread: the later one, perhaps the program's own, would find a notice that was never meant
// for it, from a sender that it may not even have. So each rank tells the others at the end how
// many notices it has sent them, and frees its handle when it has received as many.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi/mpi.h"

namespace gradred {

inline constexpr std::size_t kLargestNotice = 1024;

// The notices of this rank on one communicator; several threads may count.
class NoticeCount {
 public:
  void count_sent(int peer);
  void count_received();
  std::map<int, std::uint64_t> sent() const;
  std::uint64_t received() const;

 private:
  mutable std::mutex mutex_;
  std::map<int, std::uint64_t> sent_;
  std::uint64_t received_ = 0;
};

// Of a communicator that this rank uses no more; the others may still. Stays where it is until
// advance() says that it has ended: the MPI reads and writes its members.
class Closing {
 public:
  // No notice goes by `tag`.
  Closing(mpi::Handle comm, std::shared_ptr<const NoticeCount> notices, int tag);
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;

  // True once the communicator is freed. Never blocks, never throws: a communicator of which the
  // MPI reports an error stays.
  bool advance() noexcept;

 private:
  bool try_to_advance();
  void start();
  bool sent();
  bool receive();
  bool find_message();

  mpi::Handle comm_;
  std::shared_ptr<const NoticeCount> notices_;
  int tag_;
  bool started_ = false, failed_ = false;
  std::vector<std::uint64_t> told_;  // the peers: how many notices this rank has sent them
  std::vector<mpi::Handle> sends_;
  std::size_t peers_that_tell_ = 0;  // that have yet to tell as much
  std::uint64_t expected_ = 0, received_ = 0;
  bool arriving_ = false;
  mpi::Handle arrival_ = 0;
  std::array<std::byte, kLargestNotice> message_{};
};

}  // namespace gradred
