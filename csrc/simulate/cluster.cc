#include "simulate/cluster.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.h"
#include "schedule/topology.h"

namespace gradred {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw UsageError("a cluster that cannot be simulated: " + what);
}

bool is_time(double value) { return value >= 0 && std::isfinite(value); }

}  // namespace

Network::Network(const Cluster& cluster, std::size_t simulated)
    : cluster_(cluster), simulated_(simulated == 0 ? cluster.size() : simulated) {
  check();
  find_places();
  find_period();
  std::size_t hosts = 0, switches = 0, groups = 0;
  for (const Place& place : places_) {
    hosts = std::max<std::size_t>(hosts, place.host + 1);
    switches = std::max<std::size_t>(switches, place.in_switch + 1);
    groups = std::max<std::size_t>(groups, place.group + 1);
  }
  ranks_ = add_links(2 * places_.size(), cluster_.rank_port);
  sockets_ = add_links(hosts * static_cast<std::size_t>(cluster_.sockets), cluster_.socket_bus);
  hosts_ = add_links(hosts, cluster_.host_bus);
  ports_ = add_links(2 * hosts * static_cast<std::size_t>(cluster_.ports), cluster_.port);
  if (std::isfinite(cluster_.port)) {
    for (const Place& place : places_) {  // ranks that are fewer than ports have several each
      const std::size_t first =
          ports_ + 2 * (place.host * static_cast<std::size_t>(cluster_.ports) + place.port);
      speeds_[first] = speeds_[first + 1] = cluster_.port * place.ports;
    }
  }
  switches_ = add_links(2 * switches, cluster_.switch_uplink);
  groups_ = add_links(2 * groups, cluster_.group_uplink);
  torus_ = add_links(2 * hosts * cluster_.torus.size(), cluster_.port);
}

// Links without a limit take no room, since no route has any.
std::uint32_t Network::add_links(std::size_t count, double speed) {
  const auto first = static_cast<std::uint32_t>(speeds_.size());
  if (std::isfinite(speed)) speeds_.insert(speeds_.end(), count, speed);
  return first;
}

void Network::check() const {
  const Cluster& c = cluster_;
  require(!c.host_of.empty(), "it has no rank");
  require(simulated_ <= c.size() && c.size() % simulated_ == 0,
          "the ranks are no multiple of those that stand for all");
  require(*std::ranges::min_element(c.host_of) == 0, "hosts are numbered from 0");
  require(c.sockets >= 1 && c.ports >= 1 && c.lanes >= 1,
          "a host has at least one socket, port and lane");
  require(c.hosts_per_switch >= 0 && c.switches_per_group >= 0,
          "hosts of a switch and switches of a group are no negative numbers");
  for (const Cluster::Path& path : c.paths) {
    require(is_time(path.latency), "a latency is not a time");
    require(path.stream > 0, "a stream has no speed");
  }
  for (const double speed :
       {c.rank_port, c.socket_bus, c.host_bus, c.port, c.switch_uplink, c.group_uplink}) {
    require(speed > 0, "a link has no speed");
  }
  for (const double time : {c.send_overhead, c.receive_overhead, c.reduce, c.copy, c.hop}) {
    require(is_time(time), "an overhead, or the time of a byte, is not a time");
  }
  require(c.rendezvous >= 0, "the rendezvous threshold is negative");
  require(is_time(c.noise), "the noise is not a deviation");
  if (c.torus.empty()) return;
  std::size_t hosts = 1;
  for (const int length : c.torus) {
    require(length > 0, "a dimension of the torus has no host");
    hosts *= static_cast<std::size_t>(length);
  }
  const auto used = 1 + static_cast<std::size_t>(*std::ranges::max_element(c.host_of));
  require(hosts >= used, "the torus has " + std::to_string(hosts) +
                             " hosts, and the ranks are on " + std::to_string(used));
}

void Network::find_places() {
  const auto hosts = 1 + static_cast<std::size_t>(*std::ranges::max_element(cluster_.host_of));
  std::vector<std::uint32_t> ranks_on(hosts), seen(hosts);
  for (const int host : cluster_.host_of) ++ranks_on[static_cast<std::size_t>(host)];
  for (const int host : cluster_.host_of) {
    const auto number = static_cast<std::uint32_t>(host);
    const std::uint32_t ranks = ranks_on[number], place = seen[number]++;
    const auto all_ports = static_cast<std::uint32_t>(cluster_.ports);
    const std::uint32_t slots = std::min(ranks, all_ports);
    Place found;
    found.host = number;
    found.socket = place * static_cast<std::uint32_t>(cluster_.sockets) / ranks;
    found.port = place * slots / ranks;
    found.ports = static_cast<double>(all_ports) / slots;
    if (cluster_.hosts_per_switch > 0) {
      found.in_switch = number / static_cast<std::uint32_t>(cluster_.hosts_per_switch);
    }
    if (cluster_.switches_per_group > 0) {
      found.group = found.in_switch / static_cast<std::uint32_t>(cluster_.switches_per_group);
    }
    places_.push_back(found);
  }
}

void Network::find_period() {
  period_ = places_.size();
  const Topology topology = Topology::of(cluster_.host_of);
  if (!cluster_.torus.empty() || topology.local == 0) return;
  // The switches of the only group, and hosts on the only switch, do not differ.
  const auto hosts = static_cast<std::size_t>(topology.hosts);
  const auto on_switch = static_cast<std::size_t>(cluster_.hosts_per_switch);
  const auto in_group = static_cast<std::size_t>(cluster_.switches_per_group) * on_switch;
  auto unit = static_cast<std::size_t>(topology.local);
  if (in_group > 0 && in_group < hosts) {
    unit *= in_group;
  } else if (on_switch > 0 && on_switch < hosts) {
    unit *= on_switch;
  }
  if (period_ % unit == 0) period_ = unit;
}

Level Network::meet(std::size_t a, std::size_t b) const {
  const Place &one = places_[a], &other = places_[b];
  if (one.host == other.host) {
    return cluster_.sockets > 1 && one.socket == other.socket ? Level::kSocket : Level::kHost;
  }
  if (one.in_switch == other.in_switch) return Level::kSwitch;
  return one.group == other.group ? Level::kGroup : Level::kSystem;
}

void Network::add(Route& route, std::uint32_t first, std::size_t number, double speed) const {
  if (std::isfinite(speed)) route.links.push_back(first + static_cast<std::uint32_t>(number));
}

void Network::route(std::size_t from, std::size_t to, Route& route) const {
  const Cluster& c = cluster_;
  const Level level = meet(from, to);
  const std::size_t arrives = to % simulated_;
  const Place &out = places_[from], &in = places_[arrives];
  const Cluster::Path& path = c.paths[static_cast<std::size_t>(level)];
  route.latency = path.latency;
  route.stream = path.stream;
  route.links.clear();
  add(route, ranks_, 2 * from, c.rank_port);
  add(route, ranks_, 2 * arrives + 1, c.rank_port);
  const auto sockets = static_cast<std::size_t>(c.sockets);
  if (level == Level::kSocket)
    return add(route, sockets_, out.host * sockets + out.socket, c.socket_bus);
  if (level == Level::kHost) return add(route, hosts_, out.host, c.host_bus);
  const auto ports = static_cast<std::size_t>(c.ports);
  const double narrower = std::min(out.ports, in.ports);
  route.stream = std::min(route.stream, c.port * narrower / static_cast<double>(c.lanes));
  add(route, ports_, 2 * (out.host * ports + out.port), c.port);
  add(route, ports_, 2 * (in.host * ports + in.port) + 1, c.port);
  if (!c.torus.empty()) return route_on_torus(out.host, places_[to].host, route);
  if (level == Level::kSwitch) return;
  add(route, switches_, 2 * std::size_t{out.in_switch}, c.switch_uplink);
  add(route, switches_, 2 * std::size_t{in.in_switch} + 1, c.switch_uplink);
  if (level == Level::kGroup) return;
  add(route, groups_, 2 * std::size_t{out.group}, c.group_uplink);
  add(route, groups_, 2 * std::size_t{in.group} + 1, c.group_uplink);
}

// A message takes one dimension after the other, in each of them the shorter direction.
void Network::route_on_torus(std::size_t from, std::size_t to, Route& route) const {
  const std::size_t dimensions = cluster_.torus.size();
  std::size_t stride = 1, hops = 0;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const auto length = static_cast<std::size_t>(cluster_.torus[d]);
    std::size_t at = from / stride % length;
    const std::size_t target = to / stride % length;
    const std::size_t up = (target + length - at) % length;
    const bool rises = 2 * up <= length;
    for (; at != target; ++hops) {
      const std::size_t host = from + at * stride - from / stride % length * stride;
      add(route, torus_, 2 * (host * dimensions + d) + (rises ? 0 : 1), cluster_.port);
      at = (at + (rises ? 1 : length - 1)) % length;
    }
    from += target * stride - from / stride % length * stride;
    stride *= length;
  }
  route.latency += cluster_.hop * static_cast<double>(hops - 1);
}

}  // namespace gradred
