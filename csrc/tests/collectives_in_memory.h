// What gradred needs of an MPI for collective calls, for ranks that are threads or forked
// processes. The MPI is busy: a call moves nothing before its rank looks for the end of any call,
// and its own end takes some looks. A call on which the ranks disagree never ends.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "meetings.h"
#include "mpi/mpi.h"

namespace gradred::testing {

class CollectivesInMemory {
 public:
  // What a rank calls: a Kind of call, or one of these.
  static constexpr int kBarrier = 100, kDuplicate = 101;
  enum class Fails { kNever, kAtOnce, kLater };  // kLater: when the rank looks for its end

  // From now on this process, and those that it forks, have no other MPI. Each call makes a new
  // world of this many ranks.
  static void install(int ranks) {
    mpi::Mpi& mpi = mpi::for_tests();
    put_calls_about_ranks(mpi.call);
    put_collectives(mpi.call);
    put_requests(mpi.call);
    std::erase_if(mine().requests, [](const auto& one) { return one.second.meeting != nullptr; });
    Meetings::forget(mine().meetings);
    mine().meetings = Meetings::make(ranks);
  }
  // The rank that this thread is.
  static int& rank() {
    thread_local int number = 0;
    return number;
  }
  // The next call of this kind that this thread makes ends with this code of the MPI.
  static void fail_next(int what, int code, Fails when) { fault() = {what, code, when}; }
  static std::string error_text(int code) { return "error " + std::to_string(code) + " of a test"; }
  // Ends all calls of this process that the other ranks have made. Returns how many are left.
  static std::size_t end_all() {
    std::size_t left = 0;
    for (mpi::Handle request : open_calls()) {
      int done = 0;
      for (int look = 0; look < 10 && done == 0; ++look) test(&request, &done, nullptr);
      if (done == 0) ++left;
    }
    return left;
  }
  // Duplicates of communicators that ranks have and have not freed; each rank counts.
  static int duplicates() {
    const Meetings::Lock lock(meetings());
    return meetings().held;
  }
  // The collective calls of this rank, also on duplicates.
  static std::uint64_t calls() {
    const Meetings::Lock lock(meetings());
    return meetings().calls(rank());
  }
  static mpi::Handle error_handler(mpi::Handle comm) {
    const std::lock_guard lock(mine().mutex);
    return mine().error_handlers.try_emplace(comm, kErrorsAbort).first->second;
  }

 private:
  static constexpr mpi::Handle kErrorsAbort = 0x142, kFirstRequest = 0x10000;

  struct Generalized {
    int (*query)(void*, void*) = nullptr;
    int (*release)(void*) = nullptr;
    int (*poll)(void*, void*) = nullptr;
    void* extra = nullptr;
    bool complete = false;
  };
  struct Request {
    int looks = 2, code = 0;
    Meetings::Meeting* meeting = nullptr;  // nullptr: a generalized request
    mpi::Handle comm = 0;
    Side side{};
    mpi::Handle* duplicate = nullptr;
    Generalized generalized{};
  };
  struct Mine {  // this process's
    std::mutex mutex;
    Meetings* meetings = nullptr;
    std::map<mpi::Handle, Request> requests;
    mpi::Handle last_request = kFirstRequest;
    std::vector<Combine> operations;
    std::map<mpi::Handle, mpi::Handle> error_handlers;
  };
  struct Fault {
    int what = 0, code = 0;
    Fails when = Fails::kNever;
  };

  static Mine& mine() {
    static auto& made = *new Mine;
    return made;
  }
  static Meetings& meetings() { return *mine().meetings; }
  static Fault& fault() {
    thread_local Fault next;
    return next;
  }
  static std::vector<mpi::Handle> open_calls() {
    const std::lock_guard lock(mine().mutex);
    std::vector<mpi::Handle> open;
    for (const auto& [handle, request] : mine().requests) {
      if (request.meeting != nullptr) open.push_back(handle);
    }
    return open;
  }

  static void put_calls_about_ranks(mpi::Functions& call) {
    call.Initialized = [](int* flag) { return *flag = 1, 0; };
    call.Query_thread = [](int* level) { return *level = mpi::get().is.thread_multiple, 0; };
    call.Error_string = [](int code, char* text, int* length) {
      *length = std::snprintf(text, 100, "%s", error_text(code).c_str());
      return 0;
    };
    call.Comm_rank = [](mpi::Handle, int* found) { return *found = rank(), 0; };
    call.Comm_size = [](mpi::Handle, int* size) { return *size = meetings().ranks, 0; };
    call.Comm_group = [](mpi::Handle comm, mpi::Handle* group) { return *group = comm, 0; };
    call.Group_size = [](mpi::Handle, int* size) { return *size = meetings().ranks, 0; };
    call.Group_translate_ranks = [](mpi::Handle, int n, const int*, mpi::Handle, int* found) {
      return std::iota(found, found + n, 0), 0;
    };
    call.Group_free = [](mpi::Handle*) { return 0; };
    call.Comm_get_attr = [](mpi::Handle, int, void* value, int* found) {
      static int largest_tag = 32767;
      *static_cast<int**>(value) = &largest_tag;
      return *found = 1, 0;
    };
    call.Comm_get_errhandler = [](mpi::Handle comm, mpi::Handle* handler) {
      return *handler = error_handler(comm), 0;
    };
    call.Comm_set_errhandler = [](mpi::Handle comm, mpi::Handle handler) {
      const std::lock_guard lock(mine().mutex);
      return mine().error_handlers[comm] = handler, 0;
    };
    call.Errhandler_free = [](mpi::Handle*) { return 0; };
    call.Comm_idup = [](mpi::Handle comm, mpi::Handle* duplicate, mpi::Handle* request) {
      return post({.side = {.asked = {kDuplicate, 0, 0, 0, 0}}, .duplicate = duplicate}, comm,
                  request);
    };
    call.Comm_free = [](mpi::Handle* comm) {
      const Meetings::Lock lock(meetings());
      --meetings().held;
      return *comm = mpi::get().is.comm_null, 0;
    };
  }

  // ---- collective calls -------------------------------------------------------------------------

  static std::size_t bytes_of(int count, mpi::Handle type) {
    return static_cast<std::size_t>(count) * size_of(*mpi::get().dtype(type));
  }
  template <Kind kind>
  static int reduction(const void* send, void* recv, int count, mpi::Handle type, mpi::Handle op,
                       mpi::Handle comm, mpi::Handle* request) {
    const Side::Asked asked{static_cast<int>(kind), bytes_of(count, type), type, op, 0};
    return post({.side = {.asked = asked, .send = send, .recv = recv}}, comm, request);
  }
  template <Kind kind>
  static int rooted(const void* send, int count, mpi::Handle type, void* recv, int, mpi::Handle,
                    int root, mpi::Handle comm, mpi::Handle* request) {
    const Side::Asked asked{static_cast<int>(kind), bytes_of(count, type), type, 0, root};
    return post({.side = {.asked = asked, .send = send, .recv = recv}}, comm, request);
  }
  template <Kind kind>
  static int move(const void* send, int count, mpi::Handle type, void* recv, int, mpi::Handle,
                  mpi::Handle comm, mpi::Handle* request) {
    return rooted<kind>(send, count, type, recv, count, type, 0, comm, request);
  }
  static void put_collectives(mpi::Functions& call) {
    const auto at = [](Kind kind) { return static_cast<std::size_t>(kind); };
    call.Ireductions[at(Kind::kAllreduce)] = reduction<Kind::kAllreduce>;
    call.Ireductions[at(Kind::kReduceScatterBlock)] = reduction<Kind::kReduceScatterBlock>;
    call.Ireductions[at(Kind::kScan)] = reduction<Kind::kScan>;
    call.Ireductions[at(Kind::kExscan)] = reduction<Kind::kExscan>;
    call.Imoves[at(Kind::kAllgather)] = move<Kind::kAllgather>;
    call.Irooted_moves[at(Kind::kGather)] = rooted<Kind::kGather>;
    call.Irooted_moves[at(Kind::kScatter)] = rooted<Kind::kScatter>;
    call.Iallreduce = reduction<Kind::kAllreduce>;
    call.Iallgather = move<Kind::kAllgather>;
    call.Ibcast = [](void* data, int count, mpi::Handle type, int root, mpi::Handle comm,
                     mpi::Handle* request) {
      return rooted<Kind::kBcast>(data, count, type, data, count, type, root, comm, request);
    };
    call.Ibarrier = [](mpi::Handle comm, mpi::Handle* request) {
      return post({.side = {.asked = {kBarrier, 0, 0, 0, 0}}}, comm, request);
    };
    call.Op_create = [](Combine combine, int, mpi::Handle* op) {
      const std::lock_guard lock(mine().mutex);
      mine().operations.push_back(combine);
      return *op = kFirstOperation + mine().operations.size() - 1, 0;
    };
  }
  static int post(Request one, mpi::Handle comm, mpi::Handle* request) {
    Fault failing;
    if (fault().what == one.side.asked.what) failing = std::exchange(fault(), Fault());
    if (failing.when == Fails::kAtOnce) return failing.code;
    const std::lock_guard own(mine().mutex);
    const Meetings::Lock lock(meetings());
    one.code = failing.code;
    one.comm = comm;
    one.side.rank = rank();
    one.meeting = &meetings().next(comm, rank());
    mine().requests[*request = ++mine().last_request] = one;
    return 0;
  }
  // Returns whether the call has ended.
  static bool end(Request& one) {
    if (!meetings().all_agree(*one.meeting, one.side) || --one.looks > 0) return false;
    if (one.code == 0) {
      meetings().take(*one.meeting, one.side, mine().operations);
      if (one.duplicate != nullptr) *one.duplicate = meetings().duplicate(*one.meeting);
    } else if (one.duplicate != nullptr &&
               mine().error_handlers[one.comm] != mpi::get().is.errors_return) {
      std::abort();  // as the program's error handler asks
    }
    meetings().leave(*one.meeting);
    return true;
  }

  // ---- requests ---------------------------------------------------------------------------------

  static void put_requests(mpi::Functions& call) {
    call.Test = test;
    call.Grequest_start = [](int (*query)(void*, void*), int (*release)(void*), int (*)(void*, int),
                             void* extra, mpi::Handle* request) {
      return start({query, release, nullptr, extra}, request);
    };
    call.Grequest_start_driven =
        [](int (*query)(void*, void*), int (*release)(void*), int (*)(void*, int),
           int (*poll)(void*, void*), int (*)(int, void**, double, void*), void* extra,
           mpi::Handle* request) { return start({query, release, poll, extra}, request); };
    call.Grequest_complete = [](mpi::Handle request) {
      const std::lock_guard lock(mine().mutex);
      mine().requests.at(request).generalized.complete = true;
      return 0;
    };
    call.Status_set_elements = [](void*, mpi::Handle, int) { return 0; };
    call.Status_set_cancelled = [](void*, int) { return 0; };
  }
  static int start(const Generalized& one, mpi::Handle* request) {
    const std::lock_guard lock(mine().mutex);
    mine().requests[*request = ++mine().last_request] = {.side = {.rank = rank()},
                                                         .generalized = one};
    return 0;
  }
  static int test(mpi::Handle* request, int* done, void*) {
    *done = 1;
    if (*request == mpi::get().is.request_null) return 0;
    std::unique_lock lock(mine().mutex);
    Request& found = mine().requests.at(*request);
    {
      const Meetings::Lock with_others(meetings());
      for (const auto& [handle, one] : mine().requests) {
        const bool is_mine = one.meeting != nullptr && one.side.rank == found.side.rank;
        if (is_mine) meetings().give(*one.meeting, one.side);
      }
      if (found.meeting != nullptr) *done = end(found) ? 1 : 0;
    }
    if (found.meeting == nullptr) return lock.unlock(), test_generalized(request, done);
    if (*done == 0) return 0;
    const int code = found.code;
    mine().requests.erase(std::exchange(*request, mpi::get().is.request_null));
    return code;
  }
  // The callbacks are called without the lock.
  static int test_generalized(mpi::Handle* request, int* done) {
    const auto look = [&] {
      const std::lock_guard lock(mine().mutex);
      return mine().requests.at(*request).generalized;
    };
    Generalized found = look();
    std::array<int, 8> status{};
    if (!found.complete && found.poll != nullptr) found.poll(found.extra, status.data());
    found = look();
    *done = found.complete ? 1 : 0;
    if (*done == 0) return 0;
    const int code = found.query(found.extra, status.data());
    found.release(found.extra);
    const std::lock_guard lock(mine().mutex);
    mine().requests.erase(std::exchange(*request, mpi::get().is.request_null));
    return code;
  }
};

}  // namespace gradred::testing
