-- Writes entries of buckets.
-- KEYS: the hash of the owner, and the buckets. ARGV: the fence of the writer; the bits of its buckets; the time in seconds;
-- the entries from which on a bucket is tidied. Then for each bucket: how many entries, for how many seconds it is kept at
-- least, and a field and a value for each entry.
-- The answer: 0, or -1 if another writer has taken the fence, or buckets are others. Then nothing was done.
local owner = redis.call('HMGET', KEYS[1], 'fence', 'bits')
if owner[1] ~= ARGV[1] or owner[2] ~= ARGV[2] then return -1 end
local now, full, arg = tonumber(ARGV[3]), tonumber(ARGV[4]), 5

-- Removes what has expired.
local function tidy(key)
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local a, b, c, d = string.byte(all[i + 1], 1, 4)
    if d and ((a * 256 + b) * 256 + c) * 256 + d <= now then redis.call('HDEL', key, all[i]) end
  end
end

for i = 2, #KEYS do
  local key, count, left = KEYS[i], tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local size = redis.call('HLEN', key)
  -- A large one is not gone through: it would hold up everybody.
  if size >= full and size < 4 * full then tidy(key) end
  redis.call('HSET', key, unpack(ARGV, arg + 2, arg + 1 + 2 * count))
  if redis.call('TTL', key) < left then redis.call('EXPIRE', key, left) end
  arg = arg + 2 + 2 * count
end
return 0
