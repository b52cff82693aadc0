-- Sets KEYS to new values, all or none, if each has the value that is expected.
-- ARGV: the latest and the earliest time of the updates in it, in microseconds; how old a time may be; the name of this
-- client, 8 bytes; for how many milliseconds it may be first in line. Then for each key: the expected value, empty if
-- there is none; the new value, empty if there is to be none; the second at which it expires.
--
-- A value that starts with 2 instead of 1 has a reservation at its end: the name of a client, and until when it is first
-- in line, 13 digits. A client that has lost reserves the first key of its group that exists. Otherwise a client that has just won,
-- and so knows the values, would always be the first again. As the keys of a group are in order, no two clients wait
-- for each other.
local KEPT, LEN, MARK = 300, 21, 10000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local millis = math.floor(now / 1000)
if tonumber(ARGV[1]) > now then return { 2, now } end
if now - tonumber(ARGV[2]) > tonumber(ARGV[3]) then return { 3, now } end
local client, patience = ARGV[4], tonumber(ARGV[5])

local values, marked, taken, lost, stale = {}, {}, {}, false, false
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GETRANGE', key, 0, KEPT - 1)
  if type(value) ~= 'string' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
    value = nil
  elseif #value == KEPT then
    value = nil
  end
  if not value then
    redis.call('DEL', key)
    return { 4, now, i }
  end
  if string.byte(value) == 2 and #value > LEN then
    local ends = tonumber(string.sub(value, -13)) or 0
    taken[i] = string.sub(value, -LEN, -14) ~= client and ends > millis and ends < millis + MARK
    marked[i] = true
    value = '\1' .. string.sub(value, 2, -LEN - 1)
  end
  local expected = ARGV[3 + 3 * i]
  lost = lost or taken[i] or value ~= expected
  stale = stale or (value ~= expected and expected ~= '')
  values[i] = value
end

if lost then
  for i, key in ipairs(KEYS) do
    if values[i] ~= '' then
      if stale and not taken[i] and string.byte(values[i]) == 1 then
        local mark = client .. string.format('%013d', millis + patience)
        redis.pcall('SET', key, '\2' .. string.sub(values[i], 2) .. mark, 'KEEPTTL')
      end
      break
    end
  end
  return { 1, now, unpack(values) }
end

-- First what may be refused for want of memory, so that nothing is done then.
for i, key in ipairs(KEYS) do
  local new = ARGV[4 + 3 * i]
  if new ~= '' and (new ~= values[i] or marked[i]) then
    redis.call('SET', key, new, 'EXAT', ARGV[5 + 3 * i])
  end
end
for i, key in ipairs(KEYS) do
  if ARGV[4 + 3 * i] == '' and values[i] ~= '' then redis.call('DEL', key) end
end
return { 0, now }
