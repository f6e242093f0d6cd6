// The parts of one communicator, which owns them. Whatever carries out a call gets this struct: it
// includes the headers of the parts that it uses, and does not know the communicator.
#pragma once

#include <memory>

#include "calls/owner.h"

namespace gradred {

struct Agreed;            // calls/member.h
class Agreement;          // families/messages/agreement.h
class CommLiveness;       // engine/notices/comm_liveness.h
class DeviceWorkspace;    // families/devices/device_workspace.h
class Libraries;          // families/devices/library_operation.h
struct Member;            // calls/member.h
class MessageOperations;  // families/messages/message_operations.h
class NodePath;           // families/memory/node_path.h
class OperationLog;       // engine/notices/operation_log.h
class OperationsOnMpi;    // families/mpi/mpi_operation.h
struct Place;             // plan/plan.h
class PlanChoice;         // calls/plan_choice.h
class SchedulePath;       // families/messages/path.h

// For operations over messages.
struct MessageParts {
  Owner& owner;
  const Member& member;
  const Place& place;
  CommLiveness& liveness;
  OperationLog& operation_log;
  NodePath& node_path;
  const std::unique_ptr<SchedulePath>& path;  // nullptr: there are no messages
};

// For plan families and for operations of all kinds.
struct Parts : MessageParts {
  const Agreed& agreed;
  PlanChoice& choice;
  Agreement& agreement;
  MessageOperations& messages;
  OperationsOnMpi& on_mpi;
  Libraries& libraries;
  DeviceWorkspace& device_workspace;
};

}  // namespace gradred
