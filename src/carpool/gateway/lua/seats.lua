-- Who of several workers' people may go to the engines: what admission.py and waiting_room.py do,
-- for all workers at once.
--
-- KEYS[1]: what every key begins with.
-- ARGV[1]: JSON {worker, pools, ops}: what one worker has to say of its tickets, in order, and
--          the pools of seats that it wants to hear of. ARGV[2]: the time in seconds, for tests;
--          else it is the server's.
-- Answer:  JSON {is_stranger, answers, news, pools, num_workers}: an answer per op, the tickets of
--          this worker that may go, how many wait and run. A worker that holds no lease is a
--          stranger: nothing but its `leave`s is done until it says `join`, with all it has.
--
-- A pool is one value, what waits and what is in flight; everything else is counted from that.
-- The service of people is in a hash per pool and lane. Workers are leases in a sorted set.

local prefix = KEYS[1] .. 'seats:'
local letter = cjson.decode(ARGV[1])
local me = letter.worker
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local LEASE_S = 5
local SETTLE_S = 1.5 -- for workers to say what they have, where nobody else's lease held
local KEEP_S = 86400
local PROMPT_TOKEN_WEIGHT, OUTPUT_TOKEN_WEIGHT = 1, 2
local COMMON_PART = 0.75
local MAX_IDLE_COUNTERS = 1024
local LANES = { 'interactive', 'batch' }
local WORKERS, POOLS, HELD, SETTLED = prefix .. 'workers', prefix .. 'pools', prefix .. 'held',
  prefix .. 'settled_at'
local BY_KEY, BY_PERSON = prefix .. 'by_key', prefix .. 'by_person'

local pools, changed, called, news, answers = {}, {}, {}, {}, {}
local has_ended = false
local settled_at = tonumber(redis.call('GET', SETTLED) or 0)

local function text(number) return string.format('%.17g', number) end

-- ------------------------------------------------------------------ what is stored

local function add_in_flight(pool, ticket, sign)
  pool.seqs = pool.seqs + sign * ticket.seqs
  pool.tokens = pool.tokens + sign * (ticket.prompt + ticket.output)
  pool.people[ticket.person] = (pool.people[ticket.person] or 0) + sign
end

local function load(name)
  if pools[name] then return pools[name] end
  local packed = redis.call('GET', prefix .. 'pool:' .. name)
  local pool = {
    name = name, is_new = not packed, seqs = 0, tokens = 0, people = {}, services = {},
    data = packed and cmsgpack.unpack(packed)
      or { in_flight = {}, waiting = {}, last_left = {}, paused = {}, arrivals = 0, peaks = {} },
  }
  for _, ticket in ipairs(pool.data.in_flight) do add_in_flight(pool, ticket, 1) end
  pools[name] = pool
  return pool
end

local function services_key(pool, lane)
  return prefix .. 'service:' .. pool.name .. ':' .. lane
end

local function save(pool)
  redis.call('SET', prefix .. 'pool:' .. pool.name, cmsgpack.pack(pool.data), 'EX', KEEP_S)
  redis.call('SADD', POOLS, pool.name)
  for _, lane in ipairs(LANES) do redis.call('EXPIRE', services_key(pool, lane), KEEP_S) end
end

-- ------------------------------------------------------------------ fair share

local function service(pool, lane, person)
  local known = pool.services[lane]
  if not known then
    known = {}
    pool.services[lane] = known
  end
  if not known[person] then
    known[person] = tonumber(redis.call('HGET', services_key(pool, lane), person) or 0)
  end
  return known[person]
end

local function set_service(pool, lane, person, value)
  service(pool, lane, person)
  pool.services[lane][person] = value
  redis.call('HSET', services_key(pool, lane), person, text(value))
end

local function charge(pool, ticket, prompt, output)
  local tokens = PROMPT_TOKEN_WEIGHT * prompt + OUTPUT_TOKEN_WEIGHT * output
  local before = service(pool, ticket.lane, ticket.person)
  set_service(pool, ticket.lane, ticket.person, before + tokens / ticket.weight)
end

local function people_waiting(pool, lane)
  local people, number = {}, 0
  for _, ticket in ipairs(pool.data.waiting) do
    if ticket.lane == lane and not people[ticket.person] then
      people[ticket.person], number = true, number + 1
    end
  end
  return people, number
end

local function forget_below(pool, lane, floor, waiting, newcomer)
  local key = services_key(pool, lane)
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local person = all[i]
    local is_kept = waiting[person] or person == newcomer or person == pool.data.last_left[lane]
    if not is_kept and tonumber(all[i + 1]) <= floor then
      redis.call('HDEL', key, person)
      if pool.services[lane] then pool.services[lane][person] = nil end
    end
  end
end

-- Nobody saves up credit while away.
local function lift(pool, lane, person)
  local waiting, num_waiting = people_waiting(pool, lane)
  if waiting[person] then return end
  local floor
  for other in pairs(waiting) do
    local theirs = service(pool, lane, other)
    if not floor or theirs < floor then floor = theirs end
  end
  local last = pool.data.last_left[lane]
  floor = floor or (last and service(pool, lane, last)) or 0
  set_service(pool, lane, person, math.max(service(pool, lane, person), floor))
  if redis.call('HLEN', services_key(pool, lane)) > num_waiting + 1 + MAX_IDLE_COUNTERS then
    forget_below(pool, lane, floor, waiting, person)
  end
end

-- ------------------------------------------------------------------ seats

local function count(hash, name, sign)
  if redis.call('HINCRBY', hash, name, sign) <= 0 then redis.call('HDEL', hash, name) end
end

local function start(pool, ticket)
  local data = pool.data
  data.in_flight[#data.in_flight + 1] = ticket
  add_in_flight(pool, ticket, 1)
  count(BY_KEY, ticket.key, 1)
  count(BY_PERSON, ticket.person, 1)
  local second = math.floor(now)
  if data.peaks.at ~= second then
    data.peaks = { at = second, before = data.peaks.at == second - 1 and data.peaks.now or 0 }
  end
  data.peaks.now = math.max(data.peaks.now or 0, pool.seqs)
  changed[pool.name] = true
end

local function take_out(line, id)
  for i, ticket in ipairs(line) do
    if ticket.id == id then return table.remove(line, i) end
  end
end

local function stop_waiting(pool, id)
  local ticket = take_out(pool.data.waiting, id)
  if ticket then
    changed[pool.name] = true
    if not people_waiting(pool, ticket.lane)[ticket.person] then
      pool.data.last_left[ticket.lane] = ticket.person
    end
  end
  return ticket
end

-- Done with, waiting or in flight; the tokens are what it really took. Again is nothing.
local function leave(pool, id, prompt, output)
  if stop_waiting(pool, id) then return end
  local ticket = take_out(pool.data.in_flight, id)
  if not ticket then return end
  add_in_flight(pool, ticket, -1)
  if pool.people[ticket.person] <= 0 then pool.people[ticket.person] = nil end
  count(BY_KEY, ticket.key, -1)
  count(BY_PERSON, ticket.person, -1)
  charge(pool, ticket, prompt - ticket.prompt, output - ticket.output)
  changed[pool.name], has_ended = true, true
end

local function holds(pool, cap, hash, name)
  if not cap or tonumber(redis.call('HGET', hash, name) or 0) < cap then return false end
  redis.call('SADD', HELD, pool.name)
  return true
end

local function is_person_held(pool, ticket)
  if ticket.model_cap and (pool.people[ticket.person] or 0) >= ticket.model_cap then
    return true
  end
  return holds(pool, ticket.person_cap, BY_PERSON, ticket.person)
end

local function kept_seats(data)
  return math.min(data.newcomer_seats, data.max_num_seqs - 1)
end

local function kept_tokens(data)
  return kept_seats(data) * math.floor(data.kv_tokens / data.max_num_seqs)
end

-- Beside what is in flight, with so many to spare. One alone goes in any case.
local function fits(pool, ticket, seats, tokens)
  local data = pool.data
  return #data.in_flight == 0
    or (pool.seqs + ticket.seqs + seats <= data.max_num_seqs
      and pool.tokens + ticket.prompt + ticket.output + tokens <= data.kv_tokens)
end

local function needs_all(data, ticket)
  return ticket.seqs > math.max(1, data.max_num_seqs - kept_seats(data))
    or ticket.prompt + ticket.output > data.kv_tokens - kept_tokens(data)
end

local function is_newcomer(pool, ticket, lead)
  local mine = pool.people[ticket.person] or 0
  if ticket.lane ~= 'interactive' or mine >= math.max(1, kept_seats(pool.data)) then
    return false
  end
  local tokens = PROMPT_TOKEN_WEIGHT * ticket.prompt + OUTPUT_TOKEN_WEIGHT * ticket.output
  return lead + tokens <= OUTPUT_TOKEN_WEIGHT * pool.data.kv_tokens
end

local function is_of_one_key(pool, ticket)
  for _, other in ipairs(pool.data.waiting) do
    if other.person == ticket.person and other.key ~= ticket.key then return false end
  end
  return true
end

-- The tickets of a lane as they should go: a line per person, of which the first is next.
local function lines_of(pool, lane)
  local lines = {}
  for _, ticket in ipairs(pool.data.waiting) do
    if ticket.lane == lane then
      local line = lines[ticket.person]
      if not line then
        line = { first = 1 }
        lines[ticket.person] = line
      end
      line[#line + 1] = ticket
    end
  end
  return lines
end

local function least_served(pool, lane, lines)
  local best, least
  for person, line in pairs(lines) do
    local head, theirs = line[line.first], service(pool, lane, person)
    if head and (not best or theirs < least or (theirs == least and head.arrival < best.arrival))
    then
      best, least = head, theirs
    end
  end
  return best, least
end

-- See Admission._next. Nil: nobody of this lane goes; false: and nobody of a later one.
local function next_of_lane(pool, lane, free)
  local data, lines = pool.data, lines_of(pool, lane)
  local first, is_waited_for
  while true do
    local ticket, counter = least_served(pool, lane, lines)
    if not ticket then break end
    local line = lines[ticket.person]
    if data.paused[ticket.worker] then
      line.first = line.first + 1
    elseif is_person_held(pool, ticket) then
      lines[ticket.person] = nil
    elseif holds(pool, ticket.key_cap, BY_KEY, ticket.key) then
      if is_of_one_key(pool, ticket) then
        lines[ticket.person] = nil
      else
        line.first = line.first + 1
      end
    else
      first = first or counter
      if is_newcomer(pool, ticket, counter - first) then
        return fits(pool, ticket, 0, 0) and ticket
      end
      lines[ticket.person] = nil
      if not is_waited_for and free > kept_seats(data) then
        if needs_all(data, ticket) then return fits(pool, ticket, 0, 0) and ticket end
        if fits(pool, ticket, kept_seats(data), kept_tokens(data)) then return ticket end
        is_waited_for = true
      end
    end
  end
  if is_waited_for then return false end
  return nil
end

local function next_ticket(pool)
  local free = (pool.data.max_num_seqs or 0) - pool.seqs
  if free <= 0 or now < settled_at or #pool.data.waiting == 0 then return end
  for _, lane in ipairs(LANES) do
    local ticket = next_of_lane(pool, lane, free)
    if ticket ~= nil then return ticket end
  end
end

local function grant(pool)
  while true do
    local ticket = next_ticket(pool)
    if not ticket then return end
    charge(pool, ticket, ticket.prompt, ticket.output)
    stop_waiting(pool, ticket.id)
    start(pool, ticket)
    if ticket.worker == me then
      news[#news + 1] = { pool.name, ticket.id }
    else
      local key = prefix .. 'news:' .. ticket.worker
      redis.call('RPUSH', key, cjson.encode({ pool.name, ticket.id }))
      redis.call('EXPIRE', key, KEEP_S)
      called[ticket.worker] = true
    end
  end
end

-- ------------------------------------------------------------------ room to wait

local function room_of(pool, ticket)
  local room = { requests = 0, tokens = 0, own_requests = 0, own_tokens = 0, others = 0 }
  local others = {}
  for _, each in ipairs(pool.data.waiting) do
    local tokens = each.prompt + each.output
    room.requests, room.tokens = room.requests + 1, room.tokens + tokens
    if each.person == ticket.person then
      room.own_requests, room.own_tokens = room.own_requests + 1, room.own_tokens + tokens
    elseif not others[each.person] then
      others[each.person], room.others = true, room.others + 1
    end
  end
  return room
end

local function has_room(data, ticket, room)
  local tokens, part = ticket.prompt + ticket.output, 1
  if room.own_requests > 0 then
    local parts = room.others + 2
    if room.own_requests >= math.max(1, math.floor(data.max_requests / parts))
      or room.own_tokens + tokens > math.floor(data.max_tokens / parts) then
      return false
    end
    part = COMMON_PART
  end
  return room.requests < math.ceil(part * data.max_requests)
    and (room.requests == 0 or room.tokens + tokens <= part * data.max_tokens)
end

-- How many would go before it if nobody else came: fair rounds within its lane.
local function num_before(pool, ticket)
  local lane, mine, before = {}, 0, 0
  for _, each in ipairs(pool.data.waiting) do
    if each.lane == ticket.lane then
      lane[each.person] = (lane[each.person] or 0) + 1
    elseif ticket.lane == 'batch' then
      before = before + 1
    end
  end
  mine = lane[ticket.person] or 0
  for _, number in pairs(lane) do before = before + math.min(number, mine + 1) end
  return before
end

local function push(pool, ticket)
  lift(pool, ticket.lane, ticket.person)
  ticket.worker = me
  pool.data.arrivals = pool.data.arrivals + 1
  ticket.arrival = pool.data.arrivals
  pool.data.waiting[#pool.data.waiting + 1] = ticket
  changed[pool.name] = true
end

-- ------------------------------------------------------------------ workers

-- All that a worker had, as if it had never gone.
local function drop(worker)
  for _, name in ipairs(redis.call('SMEMBERS', POOLS)) do
    local pool, ids = load(name), {}
    if pool.is_new then redis.call('SREM', POOLS, name) end
    for _, line in ipairs({ pool.data.waiting, pool.data.in_flight }) do
      for _, ticket in ipairs(line) do
        if ticket.worker == worker then ids[#ids + 1] = ticket.id end
      end
    end
    for _, id in ipairs(ids) do leave(pool, id, 0, 0) end
    if pool.data.paused[worker] then
      pool.data.paused[worker] = nil
      changed[name] = true
    end
  end
  redis.call('DEL', prefix .. 'news:' .. worker)
  redis.call('ZREM', WORKERS, worker)
end

local ops = {}

function ops.join(op)
  drop(me)
  if redis.call('ZCARD', WORKERS) == 0 then
    settled_at = now + SETTLE_S
    redis.call('SET', SETTLED, text(settled_at), 'EX', KEEP_S)
    redis.call('DEL', BY_KEY, BY_PERSON) -- nobody has anything
  end
  for _, ticket in ipairs(op.in_flight) do
    local pool = load(ticket.pool)
    lift(pool, ticket.lane, ticket.person)
    ticket.worker, ticket.arrival = me, 0
    charge(pool, ticket, ticket.prompt, ticket.output)
    start(pool, ticket)
  end
  for _, ticket in ipairs(op.waiting) do push(load(ticket.pool), ticket) end
end

function ops.pool(op)
  local pool = load(op.pool)
  for _, name in ipairs({ 'max_num_seqs', 'kv_tokens', 'max_requests', 'max_tokens',
    'newcomer_seats' }) do
    pool.data[name] = op[name] or pool.data[name]
  end
  pool.data.paused[me] = op.is_paused or nil
  changed[op.pool] = true
  grant(pool)
end

function ops.enter(op)
  local pool, ticket = load(op.pool), op.ticket
  local room = room_of(pool, ticket)
  if not has_room(pool.data, ticket, room) then return { room = room } end
  local position = num_before(pool, ticket)
  push(pool, ticket)
  grant(pool)
  return { position = position }
end

function ops.leave(op)
  local pool = load(op.pool)
  leave(pool, op.id, op.prompt, op.output)
  grant(pool)
end

-- Caps and weight that hold now, of one who waits.
function ops.change(op)
  local pool = load(op.pool)
  for _, ticket in ipairs(pool.data.waiting) do
    if ticket.id == op.id and ticket.worker == me then
      ticket.weight, ticket.key_cap = op.weight, op.key_cap
      ticket.person_cap, ticket.model_cap = op.person_cap, op.model_cap
      changed[op.pool] = true
    end
  end
  grant(pool)
end

function ops.bye()
  drop(me)
end

-- ------------------------------------------------------------------ the letter

for _, worker in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '-inf', '(' .. text(now))) do
  if worker ~= me then drop(worker) end
end

local first = letter.ops[1]
local lease = tonumber(redis.call('ZSCORE', WORKERS, me) or 0)
local is_stranger = lease < now and not (first and first.op == 'join')
for i, op in ipairs(letter.ops) do
  answers[i] = 0
  if not is_stranger or op.op == 'leave' then answers[i] = ops[op.op](op) or 0 end
end
if not is_stranger and not (first and first.op == 'bye') then
  redis.call('ZADD', WORKERS, text(now + LEASE_S), me)
  redis.call('EXPIRE', WORKERS, KEEP_S)
end

for _, name in ipairs(letter.pools) do grant(load(name)) end
for name in pairs(changed) do grant(pools[name]) end
if has_ended then
  for _, name in ipairs(redis.call('SMEMBERS', HELD)) do
    redis.call('SREM', HELD, name)
    grant(load(name))
  end
end

local told = prefix .. 'news:' .. me
for _, each in ipairs(redis.call('LRANGE', told, 0, -1)) do news[#news + 1] = cjson.decode(each) end
redis.call('DEL', told)
local shown = {}
for _, name in ipairs(letter.pools) do
  local data = pools[name].data
  local peaks, second = data.peaks, math.floor(now)
  local peak = pools[name].seqs
  if peaks.at == second then
    peak = math.max(peak, peaks.now, peaks.before)
  elseif peaks.at == second - 1 then
    peak = math.max(peak, peaks.now)
  end
  shown[name] = { waiting = #data.waiting, in_flight = #data.in_flight, peak = peak }
end
for name in pairs(changed) do save(pools[name]) end
for worker in pairs(called) do redis.call('PUBLISH', prefix .. 'call:' .. worker, '') end
return cjson.encode({
  is_stranger = is_stranger, answers = answers, news = news, pools = shown,
  num_workers = redis.call('ZCARD', WORKERS),
})
