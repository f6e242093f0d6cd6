// The parts of one communicator, as those who carry its calls out get them: they include the
// headers of the parts that they use, and do not know the communicator, which owns the parts.
#pragma once

#include <memory>

#include "comm/owner.h"

namespace gradred {

struct Agreed;            // comm/member.h
class Agreement;          // comm/agreement.h
class CommLiveness;       // comm/comm_liveness.h
class DeviceWorkspace;    // comm/device_workspace.h
class Libraries;          // comm/library_operation.h
struct Member;            // comm/member.h
class MessageOperations;  // comm/message_operations.h
class NodePath;           // comm/node_path.h
class OperationLog;       // comm/operation_log.h
class OperationsOnMpi;    // comm/mpi_operation.h
struct Place;             // plan/plan.h
class PlanChoice;         // comm/plan_choice.h
class SchedulePath;       // comm/path.h
struct Settings;          // comm/settings.h

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
  const Settings& settings;
  PlanChoice& choice;
  Agreement& agreement;
  MessageOperations& messages;
  OperationsOnMpi& on_mpi;
  Libraries& libraries;
  DeviceWorkspace& device_workspace;
};

}  // namespace gradred
