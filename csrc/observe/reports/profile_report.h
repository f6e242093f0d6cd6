// Reports what calls have cost: the table on rank 0 and the files of GRADRED_PROFILE, at exit.
//
// Communicators count (observe/profile.h). This code merges rows, formats and writes them. It does
// not communicate, because peers may have ended when the program ends.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bell.h"
#include "base/driver_calls.h"
#include "observe/profile.h"

namespace gradred {

// The profile of one rank; times in seconds. The JSON record (its `schema` is "gradred-profile/2")
// has these fields and also host, date, versions{gradred, mpi}. There set_up is {communicators,
// seconds}.
struct ProfileRecord {
  struct Late {
    int rank = 0;
    double mean_late_s = 0;
    std::uint64_t last = 0;  // how often the rank was the last one
  };
  struct Skew {
    std::uint64_t samples = 0;
    double mean_s = 0;
    int slowest_rank = 0;
    std::vector<Late> ranks;
  };
  struct Row {
    std::string kind, op, dtype;  // `op`: empty (null in JSON) if nothing is reduced
    std::string mode;             // "blocking", "started" or "persistent"
    std::uint64_t max_bytes = 0;  // calls of up to so many bytes, and of more than half of that
    std::uint64_t calls = 0, bytes = 0;
    double bus_bytes = 0;  // through each rank's link, as nccl-tests count them
    // How many of the calls were timed; time_s contains an estimate for the others.
    std::uint64_t timed_calls = 0;
    double time_s = 0, exposed_s = 0;
    // Timed calls by the transport of their data (name_of(UsedTransport)), the most frequent first.
    struct Way {
      const char* name;
      std::uint64_t calls;
    };
    std::vector<Way> ways{};
    std::array<double, kWaitCauses> waits_s{};  // of started calls, by WaitCause
    std::optional<Skew> skew{};
  };

  int rank = 0, size = 0;  // in MPI_COMM_WORLD
  double wall_s = 0;       // since the first call
  double exposed_s = 0;    // the part of it in gradred that was not hidden, set-up included
  double share = 0;        // exposed_s / wall_s
  std::uint64_t set_up_communicators = 0;
  double set_up_s = 0;
  std::vector<Row> rows{};                     // the most exposed first
  std::vector<DriverCallSums> driver_calls{};  // of the process, the longest first
  Sleep::Counts sleeps{};                      // of the process
};

ProfileRecord record_of(const ProfileTotals& totals, double wall_s);
ProfileRecord profile_so_far();
// The table, its legend, and the share of the wall time.
std::string table_of(const ProfileRecord& record);
std::string json_of(const ProfileRecord& record);

// Values with three digits and a unit.
std::string seconds_text_of(double seconds);
std::string size_text_of(std::uint64_t bytes);

// At exit: prints the table to stderr on rank 0, and writes each rank's file if `wanted` names one.
// Throws UsageError if the file cannot be written.
void report_profile(const std::optional<std::string>& wanted);

}  // namespace gradred
