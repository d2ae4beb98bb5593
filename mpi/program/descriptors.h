// How many files this process may have open.
#pragma once

namespace unshard {

/// Local. Raises the soft limit as far as the hard one allows, within reason: the usual 1,024 is less than the shards of a large job, and a
/// shard that must be closed for another one is opened again later. A limit that can't be raised stays.
void allow_many_open_files();

}  // namespace unshard
