// What the knobs (runtime/knobs.h) ask of communicators, and what this process finds in its
// environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace gradred {

struct RankOfJob {
  int rank, size;
};

// The same on all ranks unless said otherwise.
struct Settings {
  bool shared_memory = true;
  bool single_copy = true;                // rank 0's: peers' memory may be read
  std::string plan;                       // for every call that names none; empty: the selector's
  std::string device_plan;                // the same for calls on arrays in devices' memory
  std::optional<bool> mpi_reads_devices;  // may differ; none: as the MPI itself says
  std::size_t slices = 0;                 // 0: the selector's
  std::size_t ranks_on_host = 0;          // of the whole program; 0: those of the communicator
  // As a launcher of processes says that no MPI connects, such as torchrun; none: nobody says.
  std::optional<RankOfJob> rank_of_job;  // this process; differs
  bool progress_thread = true;           // may drive what is in flight, where the MPI allows that
  std::size_t ipc_bytes = std::size_t{32} << 20;  // of a workspace of devices; 0: none; may differ
  bool ipc_programs = true;    // allocations of the program's are open to devices; may differ
  std::string trace;           // file for a Chrome trace; empty: none; may differ
  std::string fault;           // parse_fault(); empty: none
  bool profile = false;        // rank 0's decides for a communicator
  std::string profile_file;    // empty: a table is all; may differ
  std::string result_hash;     // file for hashes of results; empty: none; may differ
  bool deterministic = false;  // rank 0's: plans depend on what ranks agree on alone
  bool one_order = false;      // likewise: and add up in an order that no length changes
  bool tune = true;            // likewise: links and the MPI are measured between hosts
  std::string figures;         // folder of what was measured; empty: none; may differ
  std::string clock_file;      // of tests, base/clock.h; empty: none; may differ
  std::uint64_t warn_ns = 60'000'000'000;  // of a wait, until it is reported; may differ
  std::uint64_t timeout_ns = 0;            // likewise, until it is given up; 0: never
};
// Those of communicators that are met from now on.
Settings& settings();

}  // namespace gradred
