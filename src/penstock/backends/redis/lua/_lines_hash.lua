-- Further groups have lines of their own on streams alone.
local function begin_line() end
local function drop_line() end
