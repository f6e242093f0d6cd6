// The cluster on which schedules are simulated: where its ranks are, what its links carry, and what
// its software costs. Times are in seconds, speeds in bytes per second.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace gradred {

// The smallest part of the cluster that holds two ranks.
enum class Level : std::uint8_t { kSocket, kHost, kSwitch, kGroup, kSystem };
inline constexpr std::size_t kLevels = 5;

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Cluster {
  // What a message costs by the level at which its ranks meet.
  struct Path {
    double latency = 0;          // from the first byte sent to the first byte received
    double stream = kUnlimited;  // speed of one message at most
  };

  std::vector<int> host_of{};  // by rank; hosts numbered in the order of their first rank
  int sockets = 1;             // of a host; its ranks fill them in equal runs
  int hosts_per_switch = 0;    // 0: all hosts are on one switch
  int switches_per_group = 0;  // 0: all switches are in one group
  std::vector<int> torus{};    // hosts along each dimension; empty: hosts are connected by switches
  double hop = 0;              // latency of each link of a torus after the first

  std::array<Path, kLevels> paths{};
  // Speeds of links that messages share. Each direction of a link is one of its own, but for buses.
  double rank_port = kUnlimited;   // of one rank, to or from its memory
  double socket_bus = kUnlimited;  // of all messages inside a socket
  double host_bus = kUnlimited;  // of all messages inside a host that leave no socket, or change it
  double port = kUnlimited;      // of one network port of a host, or one link of a torus
  double switch_uplink = kUnlimited;  // of a switch to other switches
  double group_uplink = kUnlimited;   // of a group to other groups
  // A host's ranks share its ports equally. If there are fewer ranks than ports, a message is
  // striped over the ports of its rank. One message has one lane of each port at most.
  int ports = 1;
  int lanes = 1;

  double send_overhead = 0;     // of the rank, for each message that it sends
  double receive_overhead = 0;  // of the rank, for each message that it receives
  double reduce = 0;            // per byte
  double copy = 0;              // per byte
  // Longer messages wait for the receiver: two latencies before the data.
  double rendezvous = kUnlimited;
  // Whether messages from one rank to another follow each other, as on a connection. Otherwise they
  // share the links, as messages of different ranks do.
  bool in_order = true;
  // Standard deviation of the logarithm of a factor, for each message's latency and length and for
  // each rank's reductions and copies of a round.
  double noise = 0;

  std::size_t size() const { return host_of.size(); }
};

// The way of one message.
struct Route {
  double latency = 0;
  double stream = kUnlimited;
  std::vector<std::uint32_t> links{};  // those of limited speed
};

// The links of a cluster and the routes through them.
class Network {
 public:
  // Throws UsageError if the cluster makes no sense. If `simulated` is less than the number of
  // ranks, only the first so many ranks are simulated, and a message to another rank arrives over
  // the links of the rank that is the same modulo `simulated`.
  Network(const Cluster& cluster, std::size_t simulated);

  const std::vector<double>& speeds() const { return speeds_; }  // by link
  Level meet(std::size_t a, std::size_t b) const;
  bool crosses(std::size_t a, std::size_t b) const { return places_[a].host != places_[b].host; }
  void route(std::size_t from, std::size_t to, Route& route) const;
  // The least number of ranks that stand for all: the ranks of a part of the cluster that is the
  // same as all other parts and shares no link with them. All ranks, if there is no such part.
  std::size_t period() const { return period_; }

 private:
  struct Place {
    std::uint32_t host = 0, socket = 0, port = 0, in_switch = 0, group = 0;
    double ports = 1;  // how many ports of the host a rank has, if it does not share one
  };

  std::uint32_t add_links(std::size_t count, double speed);
  void add(Route& route, std::uint32_t first, std::size_t number, double speed) const;
  void check() const;
  void find_places();
  void find_period();
  void route_on_torus(std::size_t from, std::size_t to, Route& route) const;

  Cluster cluster_;
  std::size_t simulated_;
  std::size_t period_ = 0;
  std::vector<Place> places_;  // by rank
  std::vector<double> speeds_;
  std::uint32_t ranks_ = 0, sockets_ = 0, hosts_ = 0, ports_ = 0, switches_ = 0, groups_ = 0,
                torus_ = 0;  // the first link of each kind
};

}  // namespace gradred
