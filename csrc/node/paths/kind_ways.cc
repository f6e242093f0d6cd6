// One line for each kind of call that has a file of its own in this folder.
#include "base/errors.h"
#include "node/paths/kind_way.h"

namespace gradred {

std::unique_ptr<KindWay> make_scans(NodeAgreement& group, PeerStores& stores);    // scans.cc
std::unique_ptr<KindWay> make_gathers(NodeAgreement& group, PeerStores& stores);  // gathers.cc

std::unique_ptr<KindWay> make_kind_way(Kind kind, NodeAgreement& group, PeerStores& stores) {
  switch (kind) {
    case Kind::kScan:
    case Kind::kExscan:
      return make_scans(group, stores);
    case Kind::kGather:
    case Kind::kScatter:
      return make_gathers(group, stores);
    default:
      throw Error("internal error: no " + std::string(name_of(kind)) + " in the memory of a host");
  }
}

}  // namespace gradred
