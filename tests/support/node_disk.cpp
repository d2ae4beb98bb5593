#include "support/node_disk.h"

#include "support/node_files.h"

namespace unshard::testing {

std::unique_ptr<FileSystem> node_disk(const std::string& disk) {
  return std::make_unique<test::NodeFiles>(disk);
}

}  // namespace unshard::testing
