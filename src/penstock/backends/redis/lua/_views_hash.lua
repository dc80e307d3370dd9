-- Further groups have lines of their own on streams alone.
local function open_views() return {} end
local function fan_out() end
local function every_second() end
local function close_views() end
