// The simulator in Python: a cluster is a dictionary with the names of simulate/cluster.h.
#include "simulate/simulate.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "python/gil.h"
#include "python/schedules.h"
#include "simulate/fold.h"
#include "simulate/tree.h"

namespace gradred {
namespace {

namespace py = pybind11;

template <class Type>
Type value_of(const std::string& name, const py::handle& value) {
  try {
    return value.cast<Type>();
  } catch (const py::cast_error&) {
    throw UsageError("a cluster with " + name + "=" + py::repr(value).cast<std::string>() +
                     ": this is a value of another type");
  }
}

using Paths = std::array<std::pair<double, double>, kLevels>;

template <class Type>
struct Field {
  std::string_view name;
  Type Cluster::* member;
};
constexpr Field<double> kNumbers[] = {{"hop", &Cluster::hop},
                                      {"rank_port", &Cluster::rank_port},
                                      {"socket_bus", &Cluster::socket_bus},
                                      {"host_bus", &Cluster::host_bus},
                                      {"port", &Cluster::port},
                                      {"switch_uplink", &Cluster::switch_uplink},
                                      {"group_uplink", &Cluster::group_uplink},
                                      {"send_overhead", &Cluster::send_overhead},
                                      {"receive_overhead", &Cluster::receive_overhead},
                                      {"reduce", &Cluster::reduce},
                                      {"copy", &Cluster::copy},
                                      {"rendezvous", &Cluster::rendezvous},
                                      {"noise", &Cluster::noise}};
constexpr Field<int> kCounts[] = {{"sockets", &Cluster::sockets},
                                  {"hosts_per_switch", &Cluster::hosts_per_switch},
                                  {"switches_per_group", &Cluster::switches_per_group},
                                  {"ports", &Cluster::ports},
                                  {"lanes", &Cluster::lanes}};

constexpr Field<bool> kSwitches[] = {{"in_order", &Cluster::in_order}};

// Returns false if none of the fields has this name.
template <class Type, std::size_t count>
bool assign(const Field<Type> (&fields)[count], Cluster& cluster, const std::string& name,
            const py::handle& value) {
  for (const Field<Type>& field : fields) {
    if (name != field.name) continue;
    cluster.*field.member = value_of<Type>(name, value);
    return true;
  }
  return false;
}

Cluster cluster_from(const py::dict& given) {
  Cluster cluster;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (name == "host_of") {
      cluster.host_of = value_of<std::vector<int>>(name, value);
    } else if (name == "torus") {
      cluster.torus = value_of<std::vector<int>>(name, value);
    } else if (name == "paths") {
      const auto paths = value_of<Paths>(name, value);
      for (std::size_t level = 0; level < kLevels; ++level) {
        cluster.paths[level] = {paths[level].first, paths[level].second};
      }
    } else if (!assign(kNumbers, cluster, name, value) && !assign(kCounts, cluster, name, value) &&
               !assign(kSwitches, cluster, name, value)) {
      throw UsageError("a cluster has no '" + name + "'");
    }
  }
  return cluster;
}

py::dict dict_of(const Simulated& found) {
  py::dict dict;
  dict["seconds"] = found.seconds;
  dict["ranks"] = found.ranks;
  dict["simulated_ranks"] = found.simulated;
  dict["rounds"] = found.rounds;
  dict["messages"] = found.messages;
  dict["bytes_across"] = found.across;
  dict["events"] = found.events;
  return dict;
}

py::dict of_algorithm(const std::string& collective, const std::string& name,
                      const py::dict& parameters, const py::dict& cluster, double nbytes,
                      std::size_t slices, std::uint64_t seed, bool fold) {
  const Kind kind = collective_named(collective);
  const Parameters known = parameters_from(find_algorithm(kind, name), parameters);
  const Cluster model = cluster_from(cluster);
  Simulated found;
  {
    const WithoutGil free;  // it may take seconds
    found = simulate(kind, name, known, model, {nbytes, slices, seed, fold});
  }
  return dict_of(found);
}

py::dict of_schedules(const std::vector<Schedule>& schedules, const py::dict& cluster,
                      double nbytes, std::size_t slices, std::uint64_t seed, bool fold) {
  const Cluster model = cluster_from(cluster);
  Simulated found;
  {
    const WithoutGil free;
    found = simulate(schedules, model, {nbytes, slices, seed, fold});
  }
  return dict_of(found);
}

bool is_symmetric_named(const std::string& collective, const std::string& name,
                        const py::dict& parameters, std::size_t size, std::size_t period) {
  const Kind kind = collective_named(collective);
  return is_symmetric(kind, name, parameters_from(find_algorithm(kind, name), parameters), size,
                      period);
}

bool ranks_are_alike(const std::vector<Schedule>& schedules, std::size_t period,
                     const py::dict& cluster) {
  const Cluster model = cluster_from(cluster);
  const Network network(model, model.size());
  if (schedules.size() != model.size() || period == 0) {
    throw UsageError("give a schedule for each rank of the cluster, and a period of at least 1");
  }
  return is_alike([&](std::size_t rank) { return schedules[rank]; }, schedules.size(), period,
                  network);
}

}  // namespace

void bind_simulate(py::module_& m) {
  m.def("simulate_algorithm", &of_algorithm, py::arg("collective"), py::arg("name"),
        py::arg("parameters"), py::arg("cluster"), py::arg("nbytes"), py::kw_only(),
        py::arg("slices") = 1, py::arg("seed") = 0, py::arg("fold") = true);
  m.def("simulate_schedules", &of_schedules, py::arg("schedules"), py::arg("cluster"),
        py::arg("nbytes"), py::kw_only(), py::arg("slices") = 1, py::arg("seed") = 0,
        py::arg("fold") = true);
  m.def("two_trees", &two_trees, py::arg("size"), py::arg("local"), py::arg("pieces"));
  m.def("is_symmetric", &is_symmetric_named, py::arg("collective"), py::arg("name"),
        py::arg("parameters"), py::arg("size"), py::arg("period"));
  m.def("ranks_are_alike", &ranks_are_alike, py::arg("schedules"), py::arg("period"),
        py::arg("cluster"));
}

}  // namespace gradred
