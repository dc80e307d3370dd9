-- Further groups have lines of their own on streams alone.
local function open_views() return {} end
local function fan_out() end
local function every_second() end
local function renew_in_views() end
local function begin_line() end
local function drop_line() end
