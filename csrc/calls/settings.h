// What gradred's environment variables (runtime/knobs.h) ask of communicators, and what this
// process finds in its environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace gradred {

struct RankOfJob {
  int rank, size;
};

// The values are the same on all ranks, except where a comment says that they may differ.
struct Settings {
  bool shared_memory = true;
  bool single_copy = true;                // rank 0's: peers' memory may be read
  std::string plan;                       // for calls that name none; empty: the selector chooses
  std::string device_plan;                // the same for calls on arrays in device memory
  std::optional<bool> mpi_reads_devices;  // may differ; none: as the MPI itself reports
  std::size_t slices = 0;                 // 0: the selector chooses
  std::size_t threads = 1;                // rank 0's: of each rank, for long calls of a host
  std::size_t ranks_on_host = 0;          // of the whole program; 0: those of the communicator
  // As a launcher such as torchrun reports it, whose processes no MPI connects; none: not reported.
  std::optional<RankOfJob> rank_of_job;  // of this process; differs
  bool progress_thread = true;           // may advance what is in flight, if the MPI allows that
  std::size_t ipc_bytes = std::size_t{32} << 20;  // of a device workspace; 0: none; may differ
  bool ipc_programs = true;  // devices may open the program's allocations; may differ
  std::string trace;         // file for a trace; empty: none; may differ
  bool profile = false;      // rank 0's value holds for a communicator
  std::string profile_file;  // empty: only a table; may differ
  std::string metrics;       // "", a file, ":" and a port, or "otel"; a profile is kept; may differ
  std::string result_hash;   // file for hashes of results; empty: none; may differ
  bool deterministic = false;              // rank 0's: plans depend only on what ranks agree on
  bool one_order = false;                  // rank 0's: sums have an order that no length changes
  bool by_leaves = false;                  // bits depend on no number of ranks: sums_of_leaves.h
  std::uint64_t leaves = 0;                // of the job; 0: the job has no number of leaves
  bool tune = true;                        // rank 0's: links and the MPI are measured between hosts
  std::string figures;                     // folder of what was measured; empty: none; may differ
  std::string clock_file;                  // for tests, base/clock.h; empty: none; may differ
  std::uint64_t warn_ns = 60'000'000'000;  // a wait this long is reported; may differ
  std::uint64_t timeout_ns = 0;            // a wait this long is given up; 0: never; may differ
};
// The settings of communicators that are made from now on.
Settings& settings();

}  // namespace gradred
