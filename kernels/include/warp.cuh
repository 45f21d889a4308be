// Warps.
#pragma once

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
