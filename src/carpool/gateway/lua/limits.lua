-- Requests and tokens of limits: what rate_limit.py and limits.py do, for all workers at once.
--
-- KEYS[1]: what every key begins with.
-- ARGV[1]: JSON {worker, batch, returns, asks}; `returns` of a batch that was seen are not taken
--          again. ARGV[2]: the time in seconds, for tests; else it is the server's.
-- Answer:  JSON {now, answers}, an answer per ask: `ok` 1 if it was taken, `seed` the numbers of
--          subjects of which it must be said first what they have used, and `states`.
--
-- A subject is a hash: rpm, rpm_at, tpm, tpm_at (limit; when nothing taken counts any more),
-- day, day_used, day_limit, month, month_used, month_limit (beginning of the period).

local prefix = KEYS[1] .. 'limit:'
local letter = cjson.decode(ARGV[1])
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local WINDOW_S, ROUNDING_S, DAY_S = 60.0, 1e-6, 86400
local FIELDS = {
  'rpm', 'rpm_at', 'tpm', 'tpm_at',
  'day', 'day_used', 'day_limit', 'month', 'month_used', 'month_limit',
}

local function text(number) return string.format('%.17g', number) end

-- Days since 1970 as year, month, day (Howard Hinnant, "chrono-compatible low-level date
-- algorithms", civil_from_days).
local function day_of_month(days)
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  return doy - math.floor((153 * mp + 2) / 5) + 1
end

local today = math.floor(now / DAY_S)
local first = today - (day_of_month(today) - 1)
local begins = { day = today * DAY_S, month = first * DAY_S }
local next_first = first + 32 - (day_of_month(first + 32) - 1)
local expires_at = (next_first + 1) * DAY_S

local function load(id)
  local values = redis.call('HMGET', prefix .. id, unpack(FIELDS))
  local state = {}
  for i, field in ipairs(FIELDS) do state[field] = tonumber(values[i]) end
  return state
end

local function save(id, state)
  local values = {}
  for _, field in ipairs(FIELDS) do
    if state[field] then
      values[#values + 1] = field
      values[#values + 1] = text(state[field])
    end
  end
  if #values > 0 then
    redis.call('HSET', prefix .. id, unpack(values))
    redis.call('EXPIREAT', prefix .. id, expires_at)
  end
end

-- A rate without a limit is kept for the next one: what was taken is taken.
local function change_rate(state, name, limit)
  local old = state[name]
  if not limit or old == limit then return end
  local reset = old and math.max(0, state[name .. '_at'] - now) * old / limit
  state[name] = limit
  state[name .. '_at'] = reset and now + reset or 0
end

-- Whether it must be said what was used. `seed` says it.
local function change_budget(state, name, limit, seed)
  local used, known = name .. '_used', name .. '_limit'
  local is_new = not state[name]
  if not is_new and state[name] < begins[name] then
    state[name], state[used] = begins[name], 0
  end
  if limit and (is_new or state[known] ~= limit) and not seed then return true end
  state[name] = state[name] or begins[name]
  state[used] = math.max(state[used] or 0, seed or 0)
  -- None, and so to be said again when there is one: nobody counts where nothing is limited.
  state[known] = limit or 0
  return false
end

local function wait_s(state, name, units)
  local limit = state[name]
  if units > limit then return math.huge end
  local wait = math.max(0, state[name .. '_at'] - now) + units * WINDOW_S / limit - WINDOW_S
  return wait > ROUNDING_S and wait or 0
end

local function take_rate(state, name, units)
  local at = name .. '_at'
  state[at] = math.max(state[at], now) + units * WINDOW_S / state[name]
end

local function has_room(state, subject, tokens)
  return not (subject.rpm and wait_s(state, 'rpm', 1) > 0)
    and not (subject.tpm and wait_s(state, 'tpm', tokens) > 0)
    and not (subject.day and state.day_used + tokens > subject.day)
    and not (subject.month and state.month_used + tokens > subject.month)
end

local function take(state, subject, tokens)
  if subject.rpm then take_rate(state, 'rpm', 1) end
  if subject.tpm then take_rate(state, 'tpm', tokens) end
  state.day_used = state.day_used + tokens
  state.month_used = state.month_used + tokens
end

local function shown(state)
  return {
    rpm_at = text(state.rpm_at or 0), tpm_at = text(state.tpm_at or 0),
    day_used = text(state.day_used), month_used = text(state.month_used),
  }
end

local function reserve(ask)
  local states, seed = {}, {}
  for i, subject in ipairs(ask.subjects) do
    local state = load(subject.id)
    local used = subject.used or {}
    change_rate(state, 'rpm', subject.rpm)
    change_rate(state, 'tpm', subject.tpm)
    local is_day_new = change_budget(state, 'day', subject.day, used[1])
    local is_month_new = change_budget(state, 'month', subject.month, used[2])
    if is_day_new or is_month_new then seed[#seed + 1] = i - 1 end
    states[i] = state
  end
  if #seed > 0 then return { seed = seed } end
  local is_free = true
  for i, subject in ipairs(ask.subjects) do
    is_free = is_free and has_room(states[i], subject, ask.tokens)
  end
  local answer = { ok = is_free and 1 or 0, states = {} }
  for i, subject in ipairs(ask.subjects) do
    if is_free then take(states[i], subject, ask.tokens) end
    save(subject.id, states[i])
    answer.states[i] = shown(states[i])
  end
  return answer
end

-- Sums of what was taken and not used; less than nothing where more was.
local function give_back(back)
  local state = load(back.id)
  if state.rpm and back.requests ~= 0 then
    state.rpm_at = state.rpm_at - back.requests * WINDOW_S / state.rpm
  end
  if state.tpm and back.rate_tokens ~= 0 then
    state.tpm_at = state.tpm_at - back.rate_tokens * WINDOW_S / state.tpm
  end
  if state.day and state.day == back.day then state.day_used = state.day_used - back.tokens end
  if state.month and state.month == back.month then
    state.month_used = state.month_used - back.tokens
  end
  save(back.id, state)
end

if #letter.returns > 0 then
  local seen = KEYS[1] .. 'returned:' .. letter.worker
  if tonumber(redis.call('GET', seen) or 0) < letter.batch then
    for _, back in ipairs(letter.returns) do give_back(back) end
    redis.call('SET', seen, letter.batch, 'EX', DAY_S)
  end
end

local answers = {}
for i, ask in ipairs(letter.asks) do answers[i] = reserve(ask) end
return cjson.encode({ now = text(now), day = begins.day, month = begins.month, answers = answers })
