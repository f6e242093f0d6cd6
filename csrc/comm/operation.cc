// One call on its way through a communicator's schedule path.
#include "base/errors.h"
#include "comm/communicator.h"

namespace gradred {

// Waits, without blocking, until the communicator has its duplicate and its tags are free; then
// runs.
class CommOperation final : public ScheduledOperation {
 public:
  CommOperation(std::shared_ptr<Communicator> comm, const Call& call, Choice choice,
                std::uint64_t first_tag)
      : ScheduledOperation(call, comm->rank(), comm->size(), first_tag),
        comm_(std::move(comm)),
        choice_(std::move(choice)) {}

 protected:
  bool step() override {
    if (comm_->size() == 1) {
      comm_->run_alone(call_);
      return true;
    }
    if (!has_runner()) {
      if (!comm_->path_ready()) return false;
      if (!comm_->may_start(first_tag_, choice_.slices)) return false;
      use(comm_->path_->take(call_, choice_));
    }
    return ScheduledOperation::step();
  }

  void on_end(bool well) noexcept override {
    comm_->tags_free(first_tag_);
    auto runner = release_runner();
    if (well && runner) comm_->path_->give_back(std::move(runner));
    StartedOperation::on_end(well);
  }

 private:
  std::shared_ptr<Communicator> comm_;
  Choice choice_;
};

std::shared_ptr<StartedOperation> Communicator::operation(const Call& call) {
  Choice choice = plan_for(call, false);
  if (size_ > 1 && !call.schedule) {  // an unknown name is the caller's error, now
    find_algorithm(collective_of(call.kind), choice.name);
  }
  const std::lock_guard lock(tags_mutex_);
  const std::uint64_t first_tag = next_tag_;
  next_tag_ += choice.slices;
  auto operation =
      std::make_shared<CommOperation>(shared_from_this(), call, std::move(choice), first_tag);
  unfinished_.insert(first_tag);
  return operation;
}

std::shared_ptr<StartedOperation> Communicator::start(const Call& call) {
  if (!starts()) throw UsageError("the MPI has no communicators left for this one");
  auto operation = starts_on_node(call) ? node_operation(call) : this->operation(call);
  const bool threads = Registry::get().thread_level() == mpi::get().is.thread_multiple;
  if (threads) operation->open_request(operation);
  if (!operation->advance()) engine().add(operation, threads);
  return operation;
}

// Tags are used again after a whole window: not before their last user is done.
bool Communicator::may_start(std::uint64_t first_tag, std::size_t slices) {
  const std::lock_guard lock(tags_mutex_);
  return first_tag + slices - *unfinished_.begin() <= path_->transport().tags().window();
}

void Communicator::tags_free(std::uint64_t first_tag) {
  const std::lock_guard lock(tags_mutex_);
  unfinished_.erase(first_tag);
}

}  // namespace gradred
