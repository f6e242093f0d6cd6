// Which ranks of a communicator have failed, ended or left, as far as this rank knows. It learns
// this from the processes of its own host, from the launcher, and from notices of its peers.
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
  // What the set-up of the communicator finds.
  struct Found {
    RankNames names{};
    LocalPeers local_peers{};
    std::uint64_t key = 0;      // of the communicator, the same on all ranks
    mpi::Handle duplicate = 0;  // for its messages; 0: none
    NodeGroup* node = nullptr;  // of all ranks; nullptr: not all share memory
    NodeGroup* host = nullptr;  // of this host's ranks, if there are several hosts
  };

  CommLiveness(mpi::Handle comm, int rank, int size, OperationLog& log)
      : comm_(comm), rank_(rank), size_(size), log_(log) {}
  // `called`: by rank, the number that error texts use for it.
  void call_ranks(std::vector<int> called);
  // Called once. Before that, only the handle and the launcher give information on the ranks.
  void open(Found found);

  // The program has freed the communicator: its handle is not valid any more.
  void forget_handle() { freed_.store(true, std::memory_order_relaxed); }
  bool freed() const { return freed_.load(std::memory_order_relaxed); }
  RankNames names() const;  // local
  std::string own_name() const { return names().of(rank_); }

  bool failed() const;
  void receive_notices();      // of peers
  void receive_after_pause();  // the same, if this rank may have paused
  // Marks the communicator as failed, and notifies its ranks as far as possible.
  void fail(const std::exception_ptr& thrown) noexcept;

  // Each of these throws the error that ended the communicator, if it is known.
  void throw_if_failed();
  void throw_if_failed_before(std::string_view call);            // as the launcher reports
  void throw_if_failed_before(Kind kind, std::uint64_t number);  // for operations over messages
  void throw_if_lost(std::string_view where, std::optional<std::uint64_t> number = std::nullopt);
  void throw_if_peer_ended(const std::string& error);  // `error`: of the MPI
  std::optional<std::string> find_lost() const;

  // For the operations that the MPI carries out. count_on_mpi() returns how many of them this
  // process has begun over this group of ranks. throw_if_lost_on_mpi() throws PeerLost if a rank
  // has ended, or has left with fewer than `begun`.
  std::uint64_t count_on_mpi();
  void throw_if_lost_on_mpi(LostPeers& lost, std::uint64_t begun) const;

  // For reports that an operation over messages waits: whether this rank is the one of its host to
  // report, and which ranks it waits for.
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
  std::vector<int> called_;  // used until the set-up
  LostPeers lost_;
  std::uint64_t group_key_ = 0;                // of its group of ranks; 0: not computed yet
  std::atomic<std::uint64_t> received_ns_{0};  // time of the last receive_after_pause()
};

}  // namespace gradred
