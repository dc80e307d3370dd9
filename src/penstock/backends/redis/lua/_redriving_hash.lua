-- Further groups have lines of their own on streams alone.
local function give_again() return false end
