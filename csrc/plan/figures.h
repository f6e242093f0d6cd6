// What the links, the cores and the MPI of one layout of hosts cost: measured there once, or built
// in where nothing has been measured.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/cost.h"
#include "schedule/topology.h"

namespace gradred {

inline constexpr std::size_t kPieceBytes = std::size_t{60} << 10;

// What an allreduce took by one plan, and what the model says of it; seconds.
struct TriedPlan {
  std::string label;  // Plan::label
  double seconds = 0;
  double predicted = 0;

  double correction() const { return seconds / predicted; }
};

// Allreduces of one length.
struct MeasuredSize {
  std::size_t bytes = 0;
  double mpi = 0;                // seconds by the MPI's own call
  std::vector<TriedPlan> tried;  // at least one: first that which costs least in the model
};

struct Figures {
  CostModel model;
  // In pieces of so many bytes messages go between hosts; 0: whole, which is what RDMA likes. Over
  // TCP a long message that takes the rendezvous way of an MPI loses up to half of the speed where
  // another comes back at once; one within the eager limit, 64 KiB in Open MPI, does not.
  std::size_t piece_bytes = kPieceBytes;
  double announcement = 0;          // seconds in which ranks compare what they are about to do
  std::vector<MeasuredSize> sizes;  // the shortest first; none: all of this is built in
  std::string day;                  // of the measurement

  bool measured() const { return !sizes.empty(); }
  // How many times as long as the model says a plan takes: near a length at which it was tried as
  // it did there, else, and beyond all of these, as the one that costs least did.
  double correction(std::size_t bytes, std::string_view label) const;
  // Of an allreduce that the MPI carries out, announced before. Only where there are sizes.
  double seconds_on_mpi(std::size_t bytes) const;
  // "measured on 2026-11-22", "built in".
  std::string source() const;
};

// Round figures of today's machines, for messages by the MPI.
Figures assumed_figures();

// For what figures hold.
struct FiguresKey {
  std::string mpi;     // the first line of its own description
  std::string hosts;   // their names, with # for numbers: hosts of one series are alike
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
// UsageError tells what is wrong with the text.
KeptFigures figures_from(std::string_view text);

// What a file holds; empty where it is not there or cannot be read.
std::string read_kept_file(const std::string& path);
// Readers see the old file or the new one. A folder that cannot be written keeps none.
void write_kept_file(const std::string& folder, const std::string& path, const std::string& text);

std::string figures_file(const std::string& folder, const FiguresKey& key);
// Empty where the file is not there, cannot be read or is no such file of this key.
std::string read_figures(const std::string& folder, const FiguresKey& key);
// As write_kept_file().
void write_figures(const std::string& folder, const FiguresKey& key, const std::string& text);

}  // namespace gradred
