// Who of a communicator's ranks has failed, ended or left, as far as this rank knows: from the
// processes of its own host, from the launcher, and from what peers say beside the data.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/failure.h"
#include "base/rank_names.h"
#include "base/signature.h"
#include "liveness/lost_peers.h"
#include "mpi/mpi.h"

namespace gradred {

class NodeGroup;
class OperationLog;

class CommLiveness {
 public:
  // What the set-up finds.
  struct Found {
    RankNames names{};
    LocalPeers local_peers{};
    std::uint64_t key = 0;      // of the communicator, the same on all ranks
    mpi::Handle duplicate = 0;  // for its messages; 0: none
    NodeGroup* node = nullptr;  // of all ranks; null: they share no memory
    NodeGroup* host = nullptr;  // of this host's ranks, where there are several hosts
  };

  CommLiveness(mpi::Handle comm, int rank, int size, OperationLog& log)
      : comm_(comm), rank_(rank), size_(size), log_(log) {}
  // How messages call its ranks, by rank: by numbers of the program's.
  void call_ranks(std::vector<int> called);
  void open(
      Found found);  // once; before that nothing but the handle and the launcher tells of ranks

  // The program has freed the communicator: its handle means nothing any more.
  void forget_handle() { freed_.store(true, std::memory_order_relaxed); }
  bool freed() const { return freed_.load(std::memory_order_relaxed); }
  RankNames names() const;  // local
  std::string own_name() const { return names().of(rank_); }

  bool failed() const;
  void hear();              // what peers say beside the data
  void hear_after_pause();  // the same for who may have been away for a while
  // The communicator can be used no more; its ranks are told as far as they can be.
  void fail(const std::exception_ptr& thrown) noexcept;

  // Each throws what ends the communicator, if it is known.
  void throw_if_failed();
  void throw_if_failed_before(std::string_view call);            // as the launcher tells
  void throw_if_failed_before(Kind kind, std::uint64_t number);  // an operation over messages
  void throw_if_lost(std::string_view where, std::optional<std::uint64_t> number = std::nullopt);
  void throw_if_peer_ended(const std::string& error);  // of the MPI
  std::optional<std::string> find_lost() const;

  // For the operations that the MPI carries out: how many this process has begun over this group
  // of ranks. Throws PeerLost where a rank has ended, or has left with fewer than `begun`.
  std::uint64_t count_on_mpi();
  void throw_if_lost_on_mpi(LostPeers& lost, std::uint64_t begun) const;

  // Whether this rank is the one of its host to report that an operation over messages waits, and
  // for whom it does.
  bool is_first_to_wait(std::uint64_t number) const;
  std::string waits_for(std::uint64_t number, const Signature& signature) const;
  WaitRecord wait_record(std::uint64_t number, const Signature& signature) const;

 private:
  bool opened() const { return opened_.load(std::memory_order_acquire); }
  bool may_shrink() const { return opened() && found_.node != nullptr; }
  const LocalPeers& local_peers() const;
  std::optional<FailureReport> failure_before(std::string_view call) const;
  void throw_if_left(std::uint64_t number) const;

  const mpi::Handle comm_;
  const int rank_, size_;
  OperationLog& log_;
  std::atomic<bool> freed_{false};
  std::atomic<bool> opened_{false};
  Found found_;
  std::vector<int> called_;  // until the set-up
  LostPeers lost_;
  std::uint64_t group_key_ = 0;  // of its group of ranks; 0: not asked for
  std::atomic<std::uint64_t> heard_ns_{0};
};

}  // namespace gradred
