// The relay runs on rank 0 of each host group. It sends what is on the group's board to the
// coordinator, and writes to the board what all groups have agreed on. In the group of the
// communicator's rank 0 it is the coordinator as well.
//
// It has two threads, which both sleep while there is nothing to do: one waits at the board, one at
// the sockets. Neither calls the MPI. The rank's other threads call carry() after they have changed
// the board, so that the board thread need not be woken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "named/board.h"
#include "named/coordinator.h"
#include "named/sockets.h"

namespace gradred {

class Relay {
 public:
  // At the coordinator, `coordinator` is set and there is a connection to each other host group;
  // elsewhere `coordinator` is nullptr and there is one connection. `leaders`: for each connection,
  // the name of the rank at its other end. `on_failure` is called if a rank left because of a
  // failure, before the board shows it.
  Relay(Board& board, std::unique_ptr<Coordinator> coordinator, std::vector<Socket> connections,
        std::vector<std::string> leaders, std::function<void(const FailureReport&)> on_failure);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Sends what the calling thread has put on the board. `soon`: more may follow in a moment, so the
  // message may wait up to 20 us to share a packet with it.
  void carry(bool soon = false) noexcept;
  // Like carry(), and also receives messages; a waiting thread calls it instead of being woken.
  // Returns whether anything was received. Until rest(), or for a moment, the socket thread leaves
  // the sockets to this thread.
  bool look() noexcept;
  void rest() noexcept;
  // This rank has left: waits up to a second until all other host groups have been notified, so
  // that the process may end.
  void settle() noexcept;

 private:
  struct Connection {
    Socket socket;
    std::string leader;
    HostGroupEncoder encoder{};
    HostGroupDecoder decoder{};
    std::vector<std::byte> unsent{};
    bool is_full = false;       // the socket is full; epoll reports when it has room again
    std::uint64_t lost_ns = 0;  // when the connection broke, until this is reported; else 0
  };

  void watch_board();
  void watch_sockets();
  bool receive_all();
  void read_event(std::uint64_t name);
  void listen(bool on);
  void set_timer();
  void time_out_in(std::uint64_t nanoseconds);
  bool receive(std::size_t index);
  void pass_on(std::size_t index, HostGroupMessage message);
  void carry_locked();
  void to_coordinator(const HostGroupMessage& message);
  void decide();
  void send(Connection& connection, const HostGroupMessage& message);
  void flush(Connection& connection);
  void flush_all();
  void flush_soon();
  void deliver();
  bool deliver_next();
  void ask_for_missing();
  void give_up_lost();
  void fail(const std::string& why) noexcept;
  void wake_sockets() noexcept;

  Board& board_;
  const std::function<void(const FailureReport&)> on_failure_;
  std::mutex mutex_;  // protects the members below
  std::condition_variable ended_;
  std::unique_ptr<Coordinator> coordinator_;  // set at the coordinator only
  std::vector<Connection> connections_;
  std::deque<HostGroupMessage> incoming_;  // messages for the board
  std::uint64_t asked_ns_ = 0;
  bool over_ = false;  // a rank has left, and the board shows it
  std::uint64_t flushed_ns_ = 0;
  std::uint64_t looked_ns_ = 0;
  bool listens_ = true;                 // whether watch_sockets() watches the connections
  std::uint64_t due_ns_ = 0;            // when timer_ wakes the socket thread; 0: never
  std::atomic<std::uint64_t> seen_{0};  // target of Board::outgoing() that has been handled
  std::atomic<bool> stopping_{false};
  Socket wake_;   // an eventfd
  Socket timer_;  // a timerfd
  // Epoll sets: the connections; and that set together with wake_ and timer_.
  Socket connections_set_, all_set_;
  std::thread board_thread_, socket_thread_;
};

}  // namespace gradred
