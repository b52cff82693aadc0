-- Sets keys to new values, group after group: all keys of a group or none, if each has the value that is expected.
-- ARGV: how old a time may be, in microseconds; the name of this client, 8 bytes; for how many milliseconds it may be
-- first in line. Then for each group: the number of its keys, which follow those of the group before in KEYS; the latest
-- and the earliest time of the updates in it, in microseconds; and for each key: the expected value, empty if there is
-- none; the new value, empty if there is to be none; the second at which it expires.
-- The answer: the time, and for each group what became of it.
--
-- A value that starts with 2 instead of 1 has a reservation at its end: the name of a client, and until when it is first
-- in line, 13 digits. A client that has lost reserves the first key of its group that exists. Otherwise a client that has just won,
-- and so knows the values, would always be the first again. As the keys of a group are in order, no two clients wait
-- for each other.
local KEPT, LEN, MARK = 300, 21, 10000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local millis = math.floor(now / 1000)
local slack, client, patience = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
-- A key of another type counts as absent, and is replaced.
local present = redis.call('MGET', unpack(KEYS))

-- What becomes of the group of keys first to last, whose arguments begin at arg.
local function commit(first, last, arg)
  if tonumber(ARGV[arg + 1]) > now then return 2 end
  if now - tonumber(ARGV[arg + 2]) > slack then return 3 end
  arg = arg + 3

  local marked, taken, lost, stale = {}, {}, false, false
  for i = first, last do
    local value, expected = present[i] or '', ARGV[arg + 3 * (i - first)]
    if value ~= expected then
      if #value >= KEPT then
        redis.call('DEL', KEYS[i])
        return { 4, i - first + 1 }
      end
      if string.byte(value) == 2 and #value > LEN then
        local ends = tonumber(string.sub(value, -13)) or 0
        taken[i] = string.sub(value, -LEN, -14) ~= client and ends > millis and ends < millis + MARK
        marked[i] = true
        value = '\1' .. string.sub(value, 2, -LEN - 1)
        present[i] = value
      end
      lost = lost or taken[i] or value ~= expected
      stale = stale or (value ~= expected and expected ~= '')
    end
  end

  if lost then
    local answer = { 1 }
    for i = first, last do
      answer[i - first + 2] = present[i] or ''
    end
    for i = first, last do
      local value = present[i]
      if value and value ~= '' then
        if stale and not taken[i] and string.byte(value) == 1 then
          local mark = client .. string.format('%013d', millis + patience)
          redis.pcall('SET', KEYS[i], '\2' .. string.sub(value, 2) .. mark, 'KEEPTTL')
        end
        break
      end
    end
    return answer
  end

  -- First what may be refused for want of memory, so that nothing is done then.
  for i = first, last do
    local expected, new = ARGV[arg + 3 * (i - first)], ARGV[arg + 3 * (i - first) + 1]
    if new ~= '' and (new ~= expected or marked[i]) then
      redis.call('SET', KEYS[i], new, 'EXAT', ARGV[arg + 3 * (i - first) + 2])
    end
  end
  for i = first, last do
    if ARGV[arg + 3 * (i - first) + 1] == '' and present[i] then redis.call('DEL', KEYS[i]) end
  end
  return 0
end

local answers, key, arg = { now }, 1, 4
while key <= #KEYS do
  local count = tonumber(ARGV[arg])
  answers[#answers + 1] = commit(key, key + count - 1, arg)
  key, arg = key + count, arg + 3 + 3 * count
end
return answers
