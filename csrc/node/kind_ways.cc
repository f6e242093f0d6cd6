// One line for each kind of call that has a file of its own in this folder.
#include "base/errors.h"
#include "node/kind_way.h"

namespace gradred {

std::unique_ptr<KindWay> make_kind_way(Kind kind, NodeAgreement& /*group*/,
                                       PeerStores& /*stores*/) {
  throw Error("internal error: no " + std::string(name_of(kind)) + " in the memory of a host");
}

}  // namespace gradred
