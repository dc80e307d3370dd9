-- Further groups have lines of their own on streams alone.
local function flags_in() return '\0' end
local function renew_in_views() end
