// stdin, stdout and stderr of a process that was started without some of them.
#pragma once

namespace unshard {

/// Local. To be called before any file is opened. A descriptor 0, 1 or 2 that is closed (`2>&-`, some daemons) would be given to the next file
/// that is opened, and the lines meant for stderr would be written into the model. It is kept from that; using it fails as before.
void keep_standard_descriptors_apart();

}  // namespace unshard
