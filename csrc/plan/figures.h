// Figures: what the links, the cores and the MPI of one layout of hosts cost. They are measured
// once per layout; without a measurement, built-in values are used.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/cost.h"
#include "schedule/topology.h"

namespace gradred {

inline constexpr std::size_t kPieceBytes = std::size_t{60} << 10;

// The time of an allreduce by one plan and the model's prediction, in seconds.
struct TriedPlan {
  std::string label;  // Plan::label
  double seconds = 0;
  double predicted = 0;

  double correction() const { return seconds / predicted; }
};

// The allreduces of one length that were measured.
struct MeasuredSize {
  std::size_t bytes = 0;
  double mpi = 0;                // seconds that the MPI's own call took
  std::vector<TriedPlan> tried;  // at least one; the first is the one that costs least in the model
};

struct Figures {
  CostModel model;
  // Messages between hosts are cut into pieces of so many bytes; 0: they are sent whole, which is
  // best for RDMA. Over TCP, a long message that takes the MPI's rendezvous protocol loses up to
  // half of the speed while another comes back at the same time. A message within the eager limit
  // (64 KiB in Open MPI) does not.
  std::size_t piece_bytes = kPieceBytes;
  double announcement = 0;  // seconds in which the ranks compare the calls they are about to make
  std::vector<MeasuredSize> sizes;  // in order, the shortest first; empty: all figures are built in
  std::string day;                  // of the measurement, as a date

  bool measured() const { return !sizes.empty(); }
  // The model for data that go through memory that ranks share.
  CostModel in_memory() const;
  // The factor by which a plan takes longer than the model predicts. At a measured length it is
  // that of the plan if it was tried there, else that of the plan that costs least in the model.
  // Between two lengths it is interpolated. Beyond the longest it is that of the plan that costs
  // least there.
  double correction(std::size_t bytes, std::string_view label) const;
  // Seconds of an allreduce by the MPI, including the announcement before it. Only to be called if
  // there are sizes.
  double seconds_on_mpi(std::size_t bytes) const;
  // "measured on 2026-11-22", "built in".
  std::string source() const;
};

// Round figures for current machines, with messages sent by the MPI.
Figures assumed_figures();

// Identifies where the figures are valid.
struct FiguresKey {
  std::string mpi;     // the first line of the MPI's own version text
  std::string hosts;   // their names, with # for numbers: hosts of one series count as equal
  std::string layout;  // which ranks share a host

  bool operator==(const FiguresKey&) const = default;
};
std::string layout_text(const Topology& topology);
std::string hosts_text(const std::vector<std::string>& names);

// ---- files ------------------------------------------------------------------------------------

struct KeptFigures {
  FiguresKey key;
  Figures figures;
};
std::string to_text(const KeptFigures& kept);
// Throws UsageError, which describes what is wrong with the text.
KeptFigures figures_from(std::string_view text);

std::string figures_file(const std::string& folder, const FiguresKey& key);
// Returns an empty text if the file does not exist, cannot be read, or is not valid for this key.
std::string read_figures(const std::string& folder, const FiguresKey& key);
// Replaces the file atomically: readers see the old file or the new one. Does nothing if the folder
// is not writable.
void write_figures(const std::string& folder, const FiguresKey& key, const std::string& text);

}  // namespace gradred
