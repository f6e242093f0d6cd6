#include "schedule/algorithms.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/nearest.h"
#include "schedule/combinators.h"
#include "schedule/generators.h"
#include "schedule/groups.h"

namespace gradred {
namespace {

template <Schedule (*generator)(int, int)>
Schedule plain(int rank, int size, const Parameters&) {
  return generator(rank, size);
}

template <Schedule (*generator)(Kind, int, int), Kind collective>
Schedule either(int rank, int size, const Parameters&) {
  return generator(collective, rank, size);
}

void check_root(int size, const Parameters& parameters) {
  if (parameters.root < 0 || parameters.root >= size) {
    throw UsageError("root=" + std::to_string(parameters.root) + ": there are " +
                     std::to_string(size) + " ranks; give a root from 0 to " +
                     std::to_string(size - 1));
  }
}

template <Schedule (*generator)(int, int, int)>
Schedule rooted(int rank, int size, const Parameters& parameters) {
  check_root(size, parameters);
  return generator(rank, size, parameters.root);
}

Schedule k_ary(int rank, int size, const Parameters& parameters) {
  if (parameters.k < 2) {
    throw UsageError("k=" + std::to_string(parameters.k) +
                     ": recursive_multiplying needs k of 2 or more");
  }
  return recursive_multiplying(rank, size, parameters.k);
}

Generator named(Kind collective, const std::string& name, const Parameters& parameters) {
  if (name == "hierarchical") {
    throw UsageError("across='hierarchical': the parameters describe one level; name another one");
  }
  if (collective == Kind::kAllreduce && parameters.wire != Wire::kNone) {
    return [wire = parameters.wire](int r, int p) { return compressed(wire, r, p); };
  }
  return
      [&, collective](int r, int p) { return make_schedule(collective, name, r, p, parameters); };
}

Schedule grouped(int rank, int size, const Parameters& parameters) {
  const Lanes lanes = lanes_of(size, parameters);
  return hierarchical(rank, lanes,
                      {named(Kind::kReduceScatterBlock, parameters.inside, parameters),
                       named(Kind::kAllreduce, parameters.across, parameters),
                       named(Kind::kAllgather, parameters.inside, parameters)});
}

template <Kind collective>
Schedule grouped_blocks(int rank, int size, const Parameters& parameters) {
  return blocks_on_groups(collective, rank, lanes_of(size, parameters));
}

Schedule grouped_bcast(int rank, int size, const Parameters& parameters) {
  check_root(size, parameters);
  return bcast_on_groups(rank, lanes_of(size, parameters), parameters.root);
}

constexpr auto kAllreduce = Kind::kAllreduce;
constexpr auto kReduceScatter = Kind::kReduceScatterBlock;
constexpr auto kAllgather = Kind::kAllgather;
constexpr auto kBcast = Kind::kBcast;
constexpr auto kScan = Kind::kScan;
constexpr auto kExscan = Kind::kExscan;
constexpr auto kGather = Kind::kGather;
constexpr auto kScatter = Kind::kScatter;

constexpr std::string_view kAny = "any size";
constexpr std::string_view kFolded = "any size; others than powers of two are folded";

constexpr std::string_view kPatarasuk =
    "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009";
constexpr std::string_view kTraeff =
    "Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024";
constexpr std::string_view kGroups = "multiples of local, or groups of any sizes";

constexpr std::string_view kKaronis =
    "Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective "
    "operation performance, IPDPS 2000";
constexpr std::string_view kThakur =
    "Thakur, Rabenseifner and Gropp, Optimization of collective communication, IJHPCA 2005";

constexpr std::string_view kSanders =
    "Sanders and Träff, Parallel prefix (scan) algorithms for MPI, EuroPVM/MPI 2006";
constexpr std::string_view kHillis =
    "Hillis and Steele, Data parallel algorithms, Communications of the ACM, 1986";
constexpr std::string_view kChain = "the vector travels up the ranks, and each rank adds its input";
constexpr std::string_view kChainCost = "(p-1) alpha + (p-1) n beta + (p-1) n gamma";
constexpr std::string_view kPipeline =
    "the vector travels up the ranks in m = min(2(p-1), 64) chunks, several at a time";
constexpr std::string_view kPipelineCost = "(p-2+m) (alpha + n/m beta + n/m gamma)";

const std::vector<Algorithm> kTable = {
    {"ring", kAllreduce, plain<ring>, "", kAny, "reduce-scatter and allgather around a ring",
     "2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma", kPatarasuk},
    {"recursive_doubling", kAllreduce, plain<recursive_doubling>, "", kFolded,
     "pairs at distance 1, 2, 4, ... exchange the whole vector",
     "lg p alpha + n lg p beta + n lg p gamma", kThakur, true},
    {"rabenseifner", kAllreduce, plain<rabenseifner>, "", kFolded,
     "recursive halving, the nearest ranks first, then recursive doubling",
     "2 lg p alpha + 2(p-1)/p n beta + (p-1)/p n gamma",
     "Rabenseifner, Optimization of collective reduction operations, ICCS 2004", true},
    {"circulant", kAllreduce, plain<circulant>, "", kAny,
     "reduce-scatter and allgather on a circulant graph, fewest rounds and bytes at any size",
     "2 ceil(lg p) alpha + 2(p-1)/p n beta + (p-1)/p n gamma", kTraeff},
    {"direct", kAllreduce, plain<direct>, "", kAny,
     "every rank reduces its own chunk and sends it to all, two rounds",
     "2 alpha + 2(p-1)/p n beta + (p-1)/p n gamma", kThakur},
    {"recursive_multiplying", kAllreduce, k_ary, "k",
     "any size; folded where p is no product of factors up to k",
     "k ranks at a time exchange the whole vector",
     "m alpha + m (k-1) n beta + m (k-1) n gamma for p = k^m",
     "Rüfenacht, Bull and Booth, Generalisation of recursive doubling for allreduce, EuroMPI "
     "2016"},
    {"hierarchical", kAllreduce, grouped, "local groups leaders inside across wire k", kGroups,
     "reduce-scatter inside groups, allreduce across them by all ranks of a group, allgather "
     "inside",
     "the sum of its parts, the middle one with n/local",
     "Cho et al., BlueConnect: decomposing all-reduce for deep learning, MLSys 2019"},
    {"swing", kAllreduce, plain<swing>, "", kFolded,
     "halving and doubling with peers at distance 1, -1, 3, -5, ... for tori",
     "2 lg p alpha + 2(p-1)/p n beta + (p-1)/p n gamma",
     "De Sensi et al., Swing: short-cutting rings for higher bandwidth allreduce, NSDI 2024"},
    {"ring", kReduceScatter, plain<ring_reduce_scatter>, "", kAny,
     "partial sums travel around a ring", "(p-1) alpha + (p-1)/p n beta + (p-1)/p n gamma",
     kPatarasuk},
    {"recursive_halving", kReduceScatter, plain<recursive_halving>, "", kFolded,
     "pairs exchange halves of what is left, the farthest first",
     "lg p alpha + (p-1)/p n beta + (p-1)/p n gamma", kThakur, true},
    {"circulant", kReduceScatter, plain<circulant_reduce_scatter>, "", kAny,
     "partial sums on a circulant graph, fewest rounds and bytes at any size",
     "ceil(lg p) alpha + (p-1)/p n beta + (p-1)/p n gamma", kTraeff},
    {"direct", kReduceScatter, plain<direct_reduce_scatter>, "", kAny,
     "every rank sends each peer its chunk, one round", "alpha + (p-1)/p n beta + (p-1)/p n gamma",
     kThakur},
    {"hierarchical", kReduceScatter, grouped_blocks<kReduceScatter>, "local groups leaders",
     kGroups, "blocks are summed inside each group, and each sum crosses once",
     "2 alpha + (p-1)/local n beta + (p-1)/local n gamma", kKaronis},
    {"ring", kAllgather, plain<ring_allgather>, "", kAny, "chunks travel around a ring",
     "(p-1) alpha + (p-1)/p n beta", kPatarasuk},
    {"recursive_doubling", kAllgather, plain<recursive_doubling_allgather>, "", kFolded,
     "pairs exchange all they have, the nearest first", "lg p alpha + (p-1)/p n beta", kThakur},
    {"circulant", kAllgather, plain<circulant_allgather>, "", kAny,
     "chunks on a circulant graph, fewest rounds and bytes at any size",
     "ceil(lg p) alpha + (p-1)/p n beta", kTraeff},
    {"direct", kAllgather, plain<direct_allgather>, "", kAny,
     "every rank sends each peer its own chunk, one round", "alpha + (p-1)/p n beta", kThakur},
    {"hierarchical", kAllgather, grouped_blocks<kAllgather>, "local groups leaders", kGroups,
     "each block crosses once to each other group, and is shared there",
     "2 alpha + (p-1)/local n beta", kKaronis},
    {"binomial", kBcast, rooted<binomial_bcast>, "root", kAny,
     "the whole vector down a binomial tree", "ceil(lg p) alpha + n ceil(lg p) beta", kThakur},
    {"scatter_allgather", kBcast, rooted<scatter_allgather_bcast>, "root", kAny,
     "chunks down a binomial tree, then allgather on a circulant graph",
     "2 ceil(lg p) alpha + 2(p-1)/p n beta",
     "Barnett et al., Interprocessor collective communication library, SHPCC 1994"},
    {"hierarchical", kBcast, grouped_bcast, "root local groups leaders", kGroups,
     "the vector in the root's group, lanes of it across groups, then shared inside each",
     "the sum of its parts, the middle one with n/local", kKaronis},
    {"linear", kScan, either<linear_scan, kScan>, "", kAny, kChain, kChainCost, kSanders, true},
    {"pipelined", kScan, either<pipelined_scan, kScan>, "", kAny, kPipeline, kPipelineCost,
     kSanders, true},
    {"recursive_doubling", kScan, either<recursive_doubling_scan, kScan>, "", kAny,
     "each rank adds the sum of the 1, 2, 4, ... ranks before those that it has",
     "ceil(lg p) alpha + n ceil(lg p) beta + n ceil(lg p) gamma", kHillis},
    {"linear", kExscan, either<linear_scan, kExscan>, "", kAny, kChain, kChainCost, kSanders, true},
    {"pipelined", kExscan, either<pipelined_scan, kExscan>, "", kAny, kPipeline, kPipelineCost,
     kSanders, true},
    {"recursive_doubling", kExscan, either<recursive_doubling_scan, kExscan>, "", kAny,
     "as in a scan, and beside it the sum without the rank's own input",
     "ceil(lg p) alpha + n ceil(lg p) beta + 2 n ceil(lg p) gamma", kHillis},
    {"binomial", kGather, rooted<binomial_gather>, "root", kAny,
     "blocks up a binomial tree, ever more in each message", "ceil(lg p) alpha + (p-1)/p n beta",
     kThakur},
    {"linear", kGather, rooted<linear_gather>, "root", kAny,
     "all ranks send their blocks to the root at once", "alpha + (p-1)/p n beta", kThakur},
    {"binomial", kScatter, rooted<binomial_scatter>, "root", kAny,
     "blocks down a binomial tree, ever fewer in each message", "ceil(lg p) alpha + (p-1)/p n beta",
     kThakur},
    {"linear", kScatter, rooted<linear_scatter>, "root", kAny,
     "the root sends all ranks their blocks at once", "alpha + (p-1)/p n beta", kThakur},
};

}  // namespace

const std::vector<Algorithm>& algorithms() { return kTable; }

std::string_view schedules_name(Kind collective) { return info_of(collective).schedules; }

Kind collective_named(std::string_view name) {
  const auto found = std::ranges::find(kKinds, name, &KindInfo::schedules);
  if (found != kKinds.end() && !name.empty()) return static_cast<Kind>(found - kKinds.begin());
  std::string known;
  for (const KindInfo& kind : kKinds) {
    if (!kind.schedules.empty()) known += (known.empty() ? "" : ", ") + std::string(kind.schedules);
  }
  throw UsageError("no collective is called '" + std::string(name) + "'; use one of " + known);
}

bool has_algorithm(Kind collective, std::string_view name) {
  return std::ranges::any_of(kTable, [&](const Algorithm& algorithm) {
    return algorithm.collective == collective && algorithm.name == name;
  });
}

const Algorithm& find_algorithm(Kind collective, std::string_view name) {
  std::string listed;
  std::vector<std::string_view> names;
  for (const Algorithm& algorithm : kTable) {
    if (algorithm.collective != collective) continue;
    if (algorithm.name == name) return algorithm;
    listed += (names.empty() ? "" : ", ") + std::string(algorithm.name);
    names.push_back(algorithm.name);
  }
  throw UsageError("no " + std::string(schedules_name(collective)) + " algorithm is called '" +
                   std::string(name) + "'; did you mean '" +
                   std::string(names[nearest(name, names)]) + "'? There are: " + listed);
}

Lanes lanes_of(int size, const Parameters& parameters) {
  const int local = parameters.local;
  std::vector<int> host_of = parameters.groups;
  if (host_of.empty()) {
    if (local < 1 || size % local != 0) {
      throw UsageError(
          "hierarchical with local=" + std::to_string(local) + " and " + std::to_string(size) +
          " ranks: give local, the ranks of a group, such that the size is a multiple; or groups, "
          "the group of each rank");
    }
    for (int rank = 0; rank < size; ++rank) host_of.push_back(rank / local);
  }
  Topology topology = Topology::of(std::move(host_of));
  int groups = 0;  // groups are numbered in the order of their first ranks
  bool dense = true;
  for (const int group : topology.host_of) {
    dense = dense && 0 <= group && group <= groups;
    if (group == groups) ++groups;
  }
  if (topology.host_of.size() != static_cast<std::size_t>(size) || !dense) {
    throw UsageError(
        "hierarchical with groups of " + std::to_string(topology.host_of.size()) + " ranks for " +
        std::to_string(size) +
        ": give the group of each rank, numbered from 0 in the order of their first ranks");
  }
  return Lanes::of(topology, parameters.leaders != 0);
}

Schedule make_across_groups(Kind collective, int rank, int size, const Parameters& parameters) {
  const Lanes lanes = lanes_of(size, parameters);
  switch (collective) {
    case Kind::kAllreduce:
      return across_groups(rank, lanes, named(collective, parameters.across, parameters));
    case Kind::kBcast:
      return bcast_across(rank, lanes, parameters.root);
    default:
      return blocks_across(collective, rank, lanes);
  }
}

Schedule make_schedule(Kind collective, std::string_view name, int rank, int size,
                       const Parameters& parameters) {
  const Algorithm& algorithm = find_algorithm(collective, name);
  if (size < 1 || rank < 0 || rank >= size) {
    throw UsageError("rank " + std::to_string(rank) + " of " + std::to_string(size) +
                     " ranks: the rank must lie from 0 to size - 1");
  }
  Schedule schedule = algorithm.generate(rank, size, parameters);
  schedule.name = algorithm.name;
  return schedule;
}

}  // namespace gradred
