-- Removes entries of buckets that have certain versions or older ones.
-- KEYS: the hash of the owner, and the buckets. ARGV: the fence of the writer; the bits of its buckets. Then for each bucket:
-- how many entries, and a field and a version for each.
-- The answer: how many were removed, or -1 if another writer has taken the fence, or buckets are others. Then nothing was
-- done.
local owner = redis.call('HMGET', KEYS[1], 'fence', 'bits')
if owner[1] ~= ARGV[1] or owner[2] ~= ARGV[2] then return -1 end
local removed, arg = 0, 3

-- The second at which an entry moved down; none if it is no value.
local function moved_at(value)
  local a, b, c, d = string.byte(value, 1, 4)
  if not d then return nil end
  local expires, left, scale = ((a * 256 + b) * 256 + c) * 256 + d, 0, 1
  for i = 5, 9 do
    local byte = string.byte(value, i)
    if not byte then return nil end
    left = left + byte % 128 * scale
    if byte < 128 then
      if left % 2 == 0 then return expires - left / 2 end
      return expires + (left + 1) / 2
    end
    scale = scale * 128
  end
end

for i = 2, #KEYS do
  for _ = 1, tonumber(ARGV[arg]) do
    local field, version = ARGV[arg + 1], tonumber(ARGV[arg + 2])
    local value = redis.call('HGET', KEYS[i], field)
    if value then
      local moved = moved_at(value)
      if not moved then return redis.error_reply('DAMAGED ' .. KEYS[i] .. ' has a value that is no counter') end
      if moved <= version then removed = removed + redis.call('HDEL', KEYS[i], field) end
    end
    arg = arg + 2
  end
  arg = arg + 1
end
return removed
