"""Frames of posts for the `tldr` form."""

from __future__ import annotations

from flowzoo.envs.tasks.writing.templates import TextTemplate, gaps

LOST = TextTemplate(
    gaps(
        day="Monday/Tuesday/Friday/Saturday/Sunday",
        kin="daughter/nephew/grandmother/cousin/brother",
        place="zoo/aquarium/castle/stadium/market/museum",
        spot="fountain/staircase/ticket desk/souvenir shop/playground",
        item="camera/wallet/bracelet/notebook/scarf/flute",
        giver="aunt/teacher/best friend/late uncle/godfather",
        wait="three days/a week/ten days/a month",
        finder="gardener/cleaner/schoolboy/security guard/painter",
        reward="a postcard/a cup of tea/a bar of chocolate/a handshake",
    ),
    "Last {day} I took my {kin} to the {place}, and somewhere between the entrance and the {spot} "
    "I lost my {item}. It was a present from my {giver}, so I panicked at once. We walked the "
    "same way back twice and asked everybody who worked there. Nobody had seen anything. The "
    "office told me to fill in a form and to wait. When they finally called me after {wait}, a "
    "{finder} had discovered it under a bench near the {spot}. I wanted to pay for the trouble, "
    "but the {finder} would only accept {reward}. Now I keep the {item} on a string around my "
    "neck whenever we go out, and my {kin} laughs at me.",
    "I lost my {giver}'s present, the {item}, at the {place}, and nobody could help, but {wait} "
    "later the office called: a {finder} had it and wanted only {reward}.",
    "While visiting the {place} with my {kin}, I lost the {item} that my {giver} gave me as a "
    "present. We searched the way to the {spot} twice; however, nobody there could help, and the "
    "office only had a form. Then, after {wait}, came good news: a {finder} discovered it under a "
    "bench, and asked for nothing except {reward}.",
)
NOISE = TextTemplate(
    gaps(
        floor="above/below/across the hall/next door",
        sound="drumming/hammering/vacuuming/singing/trumpet practice",
        hour="five in the morning/midnight/two at night/six on Sundays",
        work="nurse/baker/pilot/bus driver/translator",
        food="soup/lasagne/dumplings/apple pie/curry",
        cause="a broken clock/a new job/an exam/a deaf dog/sleepless twins",
        offer="carpets/thick curtains/a practice room/headphones/a schedule on the door",
        time="two weeks/a month/half a year",
    ),
    "The family {floor} has been driving me mad with their {sound} since spring. It starts at "
    "{hour} and I work shifts as a {work}, so every hour of sleep counts. I wrote three polite "
    "notes and got no reply. My landlord shrugged and said that walls are thin everywhere. "
    "Yesterday I lost patience and rang their bell, ready to shout. An old man opened, apologised "
    "before I could say a word, and put a bowl of {food} into my hands. The reason for the "
    "{sound}, he explained, was {cause}. He had never received my notes because the letter box is "
    "jammed. They will get {offer} now. It has been quiet for {time}, and I feel rather silly "
    "about my anger.",
    "Notes did not stop the {sound} at {hour} by the family {floor}, but ringing the bell did: an "
    "old man apologised for {cause}, and for {time} I have slept well.",
    "As a {work} on shifts I need sleep, but {sound} from the family {floor} began at {hour}. "
    "Notes brought no reply, and the landlord did not care. When I finally rang, an old man gave "
    "me {food} and apologised: {cause} was the reason, and my notes never arrived since the "
    "letter box is jammed. Afterwards they promised {offer}, so now I sleep and regret my anger.",
)
GARDEN = TextTemplate(
    gaps(
        crop="tomatoes/pumpkins/strawberries/beans/potatoes/peppers",
        where="balcony/allotment/roof terrace/back yard/school garden",
        pest="snails/pigeons/aphids/mice/rabbits",
        poison="copper tape/a plastic owl/soap water/chilli powder/a motion lamp",
        helper="hedgehog/neighbour's cat/family of toads/retired farmer/flock of sparrows",
        cost="forty euros/ninety dollars/sixty pounds/half my bonus",
        yield_="two buckets/eleven kilos/a single handful/four crates",
        plan="leave a wild corner/build a small pond/sow flowers in between/stop buying sprays",
    ),
    "This year I decided to grow {crop} on my {where} for the first time. Everything went well "
    "until June, when {pest} arrived and ate nearly every leaf overnight. I tried {poison}, which "
    "looked convincing in the video and did nothing at all. By July I had spent {cost} and was "
    "ready to give up. Then a {helper} moved in without being invited. Within days the {pest} "
    "became rare, and the plants grew new leaves. In September I harvested {yield_}, much more "
    "than the seed packet promised. My lesson is that patience beats gadgets. Next season I will "
    "{plan} and spend the money on better soil.",
    "When {pest} ate the {crop} on my {where} in June, {poison} was no help, but thanks to a "
    "{helper} the plants grew again and in September I still harvested {yield_}.",
    "I grew {crop} on my {where} for the first time, but in June {pest} ate the leaves. Although "
    "I spent {cost}, for example on {poison}, nothing helped. Then, uninvited, a {helper} moved "
    "in, {pest} became rare within days, and the plants recovered. As a result I harvested "
    "{yield_} in September. Next season I want to {plan}, because patience was worth more than "
    "gadgets.",
)
TRIP = TextTemplate(
    gaps(
        goal="wedding/job interview/chess final/funeral/concert",
        city="Lisbon/Oslo/Vienna/Glasgow/Naples/Prague",
        vehicle="night train/ferry/coach/small plane",
        trouble="a landslide/a strike/thick fog/a power cut/a lost engine part",
        stranger="dentist/fisherman/priest/florist/young couple",
        ride="pick-up truck/wedding limousine/camper van/tractor/delivery van",
        cargo="oysters/mattresses/beehives/old pianos/paper flowers",
        delay="nine/eleven/six/fourteen",
        gift="a jar of honey/a hand-drawn map/a woollen hat/a song",
    ),
    "I had to be in {city} for a {goal} and booked the {vehicle} because it was cheap. Halfway "
    "there we stopped in the middle of nowhere: {trouble}, said the announcement, and nothing "
    "would move until the next day. People started to argue with the staff. A {stranger} who sat "
    "opposite me made a phone call instead, and half an hour later we climbed into a {ride} full "
    "of {cargo}. We drove through the night, told stories and shared my sandwiches. I reached "
    "{city} {delay} hours late, dirty and happy, just as the {goal} began. The {stranger} refused "
    "any money and gave me {gift} as a farewell. The company, by the way, still has not answered "
    "my complaint.",
    "My {vehicle} to {city} stopped halfway because of {trouble}, but a {stranger} found us a "
    "{ride} with {cargo}, and we reached the {goal} late, though in time for the start.",
    "On the way to a {goal} in {city} my cheap {vehicle} stopped because of {trouble}. While "
    "others argued with the staff, a {stranger} made a call, and soon we sat in a {ride} among "
    "{cargo}, telling stories through the night. In the end I was {delay} hours late; still, the "
    "{goal} had only just begun. For the farewell I even received {gift}, whereas the company "
    "never answered.",
)
COOKING = TextTemplate(
    gaps(
        guest="boss/future in-laws/old professor/landlady/football team",
        dish="risotto/paella/duck/cheese souffle/goulash",
        error="salt for sugar/a broken thermometer/frozen stock/the wrong oven setting",
        sign="smoke/a sour smell/a loud bang/green foam",
        rescue="pancakes/toast with eggs/noodles from the corner shop/fried rice/baked beans",
        remark="the best evening in years/a taste of childhood/honest food/a brave choice",
        friend="sister/flatmate/neighbour/colleague",
        lesson="practise once before/read the recipe twice/keep the plan simple/taste it early",
    ),
    "I invited my {guest} to dinner and wanted to impress with {dish}, which I had never made. My "
    "{friend} warned me, and I did not listen. An hour before eight I noticed {sign} coming from "
    "the kitchen. The cause was {error}, and there was nothing left to save. With guests at the "
    "door I emptied the cupboard and served {rescue} on our finest plates. I confessed everything "
    "before the first bite. To my surprise they laughed, asked for a second helping and called it "
    "{remark}. We sat until two and sang. My {friend} still teases me about it. Next time I will "
    "{lesson}, whatever the cookbook says.",
    "At dinner for my {guest} the {dish} was lost to {error}, so we served {rescue} from the "
    "cupboard instead, and after a confession everybody laughed and was happy.",
    "To impress my {guest} I tried to make {dish} for the first time, although my {friend} had "
    "warned me. Shortly before eight {sign} came from the kitchen: {error} had ruined it. "
    "Therefore I served {rescue} on fine plates and confessed. However, instead of being cross "
    "they laughed, took a second helping and called it {remark}. From now on I will {lesson}.",
)
REPAIR = TextTemplate(
    gaps(
        thing="bicycle/washing machine/sewing machine/record player/typewriter",
        age="thirty/forty/twenty-five/fifty",
        fault="a grinding noise/a burnt smell/a loose belt/a stuck lever",
        quote="twice its price/three hundred euros/more than my rent/a month's pay",
        place="library/community centre/church hall/old fire station",
        expert="retired watchmaker/physics student/tram mechanic/former sailor",
        part="spring/rubber ring/copper wire/tiny cog",
        price="two euros/a smile/a cake/nothing at all",
        now="helps there on Thursdays/teaches others to solder/collects old screws/makes coffee",
    ),
    "My {thing} is {age} years old and I love it, so I was sad when it developed {fault}. The "
    "shop asked for {quote} and advised me to throw it away. A poster at the {place} mentioned a "
    "repair evening, and I carried the heavy thing there in the rain. A {expert} listened to it "
    "for a minute, smiled and took it apart on a towel. The culprit was a worn {part}. We made a "
    "new one together from scrap, and it cost me {price}. While we worked I learned more about "
    "machines than in ten years of school. It has run smoothly ever since. The evening changed me "
    "too: somebody who could not hold a screwdriver now {now}.",
    "The shop told me to throw away my old {thing}, but at a repair evening a {expert} took it "
    "apart and made a new {part} from scrap, which cost me {price}.",
    "When my beloved {thing} developed {fault} after {age} years, the shop wanted {quote} and "
    "told me to throw it away. Instead I carried it through the rain to the {place}, where a "
    "{expert} took it apart and found a worn {part}. Together we made another from scrap, so in "
    "the end I paid {price}. It runs again, and besides, I learned a lot: the person who could "
    "not use a screwdriver now {now}.",
)
POSTS = (LOST, NOISE, GARDEN, TRIP, COOKING, REPAIR)
