// Groups of processes over NCCL.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "cgotorch.h"
#include "core/collectives.h"

namespace ct {

ct_group_id new_nccl_id();
std::unique_ptr<Collectives> new_nccl(c10::DeviceIndex device, const ct_group_id& id, int32_t rank, int32_t world);

}  // namespace ct
